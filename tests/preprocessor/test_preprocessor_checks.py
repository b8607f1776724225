"""fastokens is compared with tokenizers on some prompts, and not used any more after a
difference."""

import pytest

from schemas.conversation import Conversation, Message, Text
from services.preprocessor.checks import CHECK_EVERY, PromptChecks
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import assemble
from services.preprocessor.threads import PromptThreads
from services.tokenization.encoder import Encoder
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually

CONVERSATION = Conversation("m", [Message("user", [Text("hi")])])


class Wrong:
    def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]:
        return b"\1\0\0\0", b""


def test_wrong_ids_disable_fastokens_and_equal_ones_change_nothing(setup: ModelSetup) -> None:
    assert setup.encoder.find_difference("hello <|im_start|> world") is None
    assert setup.encoder.name == "fastokens"
    wrong = Encoder(setup.tokenizer.backend, fast=Wrong())
    assert wrong.encode("hello world").tolist() == [1]
    reason = "ids by fastokens were not the tokenizer's"
    assert wrong.find_difference("hello world") == wrong.reason == reason
    assert wrong.name == "tokenizers"
    assert wrong.encode("hello world") == setup.encoder.reference("hello world")


async def test_one_prompt_in_500_is_compared_and_a_difference_is_logged_as_an_error(
    make_process: MakeProcess, setup: ModelSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await make_process("preprocessor", "check-p")
    errors: list[str] = []
    monkeypatch.setattr(
        process.log, "error", lambda event, **_: errors.append(event), raising=False
    )
    monkeypatch.setattr(Encoder, "find_difference", lambda *_: "they differ")
    threads = PromptThreads(setup, process.log, 1, 10.0)
    checks = PromptChecks(process, threads, setup.encoder, setup.template.renderer, 1 << 20)
    prompt = assemble(CONVERSATION, setup)
    for _ in range(2 * CHECK_EVERY):
        checks.check_prompt(CONVERSATION, prompt)
    await eventually(lambda: len(errors) == 2, 60)
    threads.close()
    assert errors == ["preprocessor.tokenizers_differ"] * 2
