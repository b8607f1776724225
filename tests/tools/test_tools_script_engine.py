"""The script engine: what it says, when, and what a request can make it do."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config import WorkerConfig
from services.worker.engine import EngineDelta, EngineDied, EngineInfo, EngineRequest
from tests.kit.listening import listen
from tests.kit.waiting import LIMIT_S
from turnwire_tools.script.engine import BLOCK_TOKENS, ScriptEngine


class Stage:
    """A started script engine and the tokenizer to talk to it."""

    def __init__(self, engine: ScriptEngine, info: EngineInfo, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.info = info
        self.tokenizer = tokenizer
        self.count = 0

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def request(self, text: str, *, history: str = "") -> EngineRequest:
        self.count += 1
        prompt = f"{history}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return EngineRequest(
            f"t{self.count}",
            self.encode(prompt),
            Sampling(max_tokens=500),
            self.info.eos_ids,
        )

    async def play(self, text: str, **more: Any) -> list[EngineDelta]:
        async with asyncio.timeout(LIMIT_S):
            return [delta async for delta in listen(self.engine, self.request(text, **more))]

    async def say(self, text: str, **more: Any) -> str:
        """The text of the output."""
        deltas = await self.play(text, **more)
        return self.decode(token for delta in deltas for token in delta.ids)

    async def fail(self, text: str, error: type[EngineFailed], reason: str = ".") -> list[int]:
        """The ids that come before the turn fails with exactly this error."""
        heard: list[int] = []

        async def listening() -> None:
            async for delta in listen(self.engine, self.request(text)):
                heard.extend(delta.ids)

        with pytest.raises(error, match=reason) as caught:
            await asyncio.wait_for(listening(), LIMIT_S)
        assert type(caught.value) is error
        return heard

    async def begin(self, text: str) -> AsyncGenerator[EngineDelta, None]:
        """A turn that has written its first token."""
        deltas = listen(self.engine, self.request(text))
        assert (await asyncio.wait_for(anext(deltas), LIMIT_S)).ids
        return deltas


@pytest.fixture
async def stage(demo_dir: Path) -> AsyncIterator[Callable[..., Any]]:
    engines: list[ScriptEngine] = []

    async def make(**config: Any) -> Stage:
        options = {"script_mode": "request", "token_delay_ms": 0.0, **config}
        engine = ScriptEngine(WorkerConfig(model=str(demo_dir), **options))
        engines.append(engine)
        return Stage(
            engine, await engine.start(), Tokenizer.from_file(str(demo_dir / "tokenizer.json"))
        )

    yield make
    for engine in engines:
        await engine.stop(1.0)


async def test_a_request_brings_its_own_output(stage: Any) -> None:
    trial = await stage()
    output = "<think>\nHm.\n</think>\n\nGood <tool_call>day"
    deltas = await trial.play(f"[[say]]{output}[[/say]]")
    assert trial.decode(token for delta in deltas for token in delta.ids) == output
    assert deltas[-1].finish is FinishReason.STOP
    assert deltas[-1].stop_id == trial.info.eos_ids[0]


async def test_each_turn_has_its_own_output(stage: Any) -> None:
    trial = await stage(family="qwen3_coder")
    asked = "[[say]]call[[/say]] [[say]]answer[[/say]]"
    assert await trial.say(asked) == "call"
    turn = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\ncall<|im_end|>\n"
    results = "<tool_response>\n[[say]]not this[[/say]]\n</tool_response>"
    assert await trial.say(results, history=turn) == "answer"
    answered = "<|im_start|>assistant\nx<|im_end|>\n" * 2
    over = f"{turn * 2}<|im_start|>user\n{asked}<|im_end|>\n{answered}"
    rest = await trial.say(results, history=over)
    assert rest.endswith("</think>\n\nThe request's script has no further turn."), "not in thought"


async def test_agent_mode_ignores_output_in_requests(stage: Any) -> None:
    trial = await stage(script_mode="agent", family="qwen3_coder")
    said = await trial.say("[[say]]secret[[/say]] [[die]] [[play x]]")
    assert "secret" not in said
    assert "scripted demo engine" in said
    assert trial.engine.healthy()


async def test_scripts_of_a_directory_are_named_at_the_end_of_the_prompt(
    stage: Any, tmp_path: Path
) -> None:
    (tmp_path / "hello.txt").write_text("Hello there.")
    (tmp_path / "some.json").write_text(json.dumps({"long": ["Start ", {"fill": "n"}]}))
    trial = await stage(script_dir=str(tmp_path), script_mode="agent", family="qwen3_coder")
    assert await trial.say("x " * 3000 + "[[play hello]]") == "Hello there."
    long = await trial.play("[[play long n=30 burst=8]]")
    assert len([i for d in long for i in d.ids]) == 30 + len(trial.encode("Start "))
    assert max(len(d.ids) for d in long) == 8
    with pytest.raises(Invalid, match="there are: hello, long"):
        await trial.play("[[play nothing]]")
    assert "scripted demo engine" in await trial.say("no directive")


async def test_prefill_costs_time_for_what_is_not_cached(stage: Any) -> None:
    trial = await stage(prefill_tokens_per_s=4_000.0)
    text = "word " * 2000 + "[[say]]yes[[/say]]"
    tokens = len(trial.request(text).token_ids)

    async def first_token() -> tuple[float, int | None]:
        started = time.monotonic()
        deltas = listen(trial.engine, trial.request(text))
        first = await asyncio.wait_for(anext(deltas), LIMIT_S)
        await deltas.aclose()
        return time.monotonic() - started, first.cached

    cold, none = await first_token()
    warm, most = min([await first_token() for _ in range(5)])  # a busy machine delays some
    assert none == 0
    assert most == (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert cold >= tokens / 4_000
    assert warm < cold / 2


async def test_error_in_one_stream_leaves_the_others(stage: Any) -> None:
    trial = await stage()
    text = "[[say]]some words[[fail bad luck]] more[[/say]]"
    heard = await trial.fail(text, EngineFailed, "bad luck")
    assert heard == trial.encode("some words")
    assert await trial.say("[[say]]fine[[/say]]") == "fine"


async def test_a_request_may_kill_the_engine(stage: Any) -> None:
    trial = await stage()
    other = await trial.begin("[[say]]a[[silence]][[/say]]")
    await trial.fail("[[say]]a[[die at lunch]][[/say]]", EngineDied, "at lunch")
    with pytest.raises(EngineDied):
        await asyncio.wait_for(anext(other), LIMIT_S)
    assert not trial.engine.healthy()
