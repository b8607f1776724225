"""What a sample of prompts shows to be wrong is turned off for good."""

from dataclasses import replace

import pytest

from schemas.conversation import Conversation, Text, Turn
from services.preprocessor.model import ModelSetup
from services.preprocessor.preparation import preparation_counts
from services.preprocessor.prompt.assembly import assemble
from services.preprocessor.prompt.audit import Audit
from services.preprocessor.prompt.history import History
from services.tokenization.encoder import Encoder
from services.tokenization.segments import Cuts, TokenIds


@pytest.fixture
def history(setup: ModelSetup) -> History:
    return History(setup.template, setup.traits, max_bytes=1 << 20)


def test_one_prompt_in_so_many_is_compared(setup: ModelSetup, history: History) -> None:
    audit = Audit(history, setup.encoder, every=3)
    made: list[int] = []
    for number in range(10):

        def render(number: int = number) -> str:
            made.append(number)
            return f"text {number}"

        audit.offer(f"text {number}", None, render)
        if (check := audit.take()) is not None:
            assert check() is None
    assert made == [2, 5, 8]
    assert (audit.checks, audit.differences, history.off) == (3, 0, None)


def test_no_two_wait(setup: ModelSetup, history: History) -> None:
    audit = Audit(history, setup.encoder, every=1)
    for number in range(5):
        audit.offer(str(number), None, lambda: "0")
    assert audit.take() is not None
    assert audit.take() is None


def test_a_text_that_is_not_the_templates_turns_parts_off(setup: ModelSetup, history: History) -> None:
    audit = Audit(history, setup.encoder, every=1)
    audit.offer("a", None, lambda: "b")
    check = audit.take()
    assert check is not None
    assert check() == history.off == "a prompt rendered in parts was not the template's"
    assert (audit.checks, audit.differences) == (1, 1)


def test_wrong_ids_cost_an_encoder_its_place(setup: ModelSetup, history: History) -> None:
    class Wrong:
        def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]:
            return b"\1\0\0\0", b""

    def encode(texts: list[str]) -> list[TokenIds]:
        return [setup.encoder.reference(text) for text in texts]

    encoder = Encoder(encode, cuts=Cuts(["l"]), fast=Wrong())  # `l` is no place to cut either
    audit = Audit(history, encoder, every=1)
    for reason in ("ids by fastokens were not the tokenizer's", "ids by tokenizers were not the tokenizer's", None):
        audit.offer("hello world", None, lambda: "hello world")
        check = audit.take()
        assert check is not None
        assert check() == reason
    assert encoder.name == "tokenizers"
    assert not encoder.cuts
    assert encoder.encode("hello world") == setup.encoder.reference("hello world")
    assert history.off is None


def test_every_rendered_prompt_is_offered(setup: ModelSetup, history: History) -> None:
    audited = replace(setup, audit=Audit(history, setup.encoder, every=2))
    conversation = Conversation("m", [Turn("user", [Text("hi")])])
    assemble(conversation, audited)
    assert audited.audit.take() is None
    assemble(conversation, audited)
    check = audited.audit.take()
    assert check is not None
    assert check() is None


def test_the_counts_are_metrics(setup: ModelSetup) -> None:
    names = {metric.name for metric in preparation_counts(setup).collect()}
    assert {"turnwire_prompts_in_parts", "turnwire_prompts_whole", "turnwire_prompts_differed"} <= names
