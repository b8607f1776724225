"""Templates that are slow or recurse are stopped."""

import asyncio
import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from msgspec import structs

from schemas.conversation import Conversation, ToolSpec
from schemas.errors import Invalid
from services.ledger.turn_ledger import Ledger
from services.preprocessor import threads as threads_module
from services.preprocessor.ledger_reader import LedgerReader
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.preparation import Preparation
from services.preprocessor.prompt.prompt_maker import Prompt
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.storage.seal import Sealer
from services.templates.chat_template import ChatTemplate
from services.tokenization.tokenizer_files import LoadedTokenizer
from tests.kit.conversations import user
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S

CONVERSATION = Conversation("m", [user("hi")])
SLOW = """{% for m in messages %}<|im_start|>{{ m.content }}{% if m.content == 'slow' %}
{%- for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{% endif %}{% endfor %}"""
"""Ten billion steps for one word."""


async def make(preparation: Preparation, text: str) -> Prompt:
    conversation = Conversation("m", [user(text)])
    return await preparation.make_prompt(conversation, size=100)


async def test_slow_template_does_not_block_other_requests(
    make_process: MakeProcess,
    setup: ModelSetup,
    demo_tokenizer: LoadedTokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = await make_process("preprocessor", "slow-p")
    endless = replace(setup, template=ChatTemplate(demo_tokenizer, SLOW, "slow.jinja"))
    hours, over = count(), asyncio.Event()
    clock = SimpleNamespace(
        monotonic=lambda: 3600.0 * next(hours) if over.is_set() else 0.0,
        thread_time=time.thread_time,
    )
    monkeypatch.setattr(threads_module, "time", clock)
    config = PreprocessorConfig(model="m", threads=1, render_timeout_s=2.0)
    preparation = Preparation(
        process, endless, Sealer(b"test"), config, LedgerReader(Ledger(endless.encoder))
    )
    requests = [asyncio.create_task(make(preparation, "slow")) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(10):
        prompt = await asyncio.wait_for(make(preparation, "quick"), LIMIT_S)
        assert prompt.text == "<|im_start|>quick"
    assert {request.done() for request in requests} == {False}, "the other requests waited"
    over.set()
    ended = asyncio.gather(*requests, return_exceptions=True)
    message = "the chat template slow.jinja did not render this conversation within 2 s"
    for failure in await asyncio.wait_for(ended, LIMIT_S):
        assert isinstance(failure, Invalid)
        assert failure.info.message == message
    preparation.threads.close()


def test_endless_recursion_and_a_deep_schema_are_named_in_the_error(
    setup: ModelSetup, demo_tokenizer: LoadedTokenizer
) -> None:
    source = "{% macro deep(n) %}{{ deep(n + 1) }}{% endmacro %}{{ deep(0) }}"
    endless = replace(setup, template=ChatTemplate(demo_tokenizer, source, "endless.jinja"))
    with pytest.raises(Invalid, match=r"template endless\.jinja exceeded the recursion limit"):
        assemble(CONVERSATION, endless)
    schema: dict[str, object] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(Invalid, match="nested too deeply"):
        assemble(structs.replace(CONVERSATION, tools=[ToolSpec("a", "", schema)]), setup)
