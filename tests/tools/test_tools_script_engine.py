"""The script engine: its output, from files and directives, and what a request can make it do."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from schemas.conversation import Sampling
from schemas.errors import Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta, EngineDied, EngineInfo, EngineRequest
from tests.kit.listening import listen
from tests.kit.waiting import LIMIT_S, eventually
from turnwire_tools.script.engine import ScriptEngine
from turnwire_tools.script.prefills import PrefillQueue


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

    def text_of(self, deltas: Iterable[EngineDelta]) -> str:
        ids = [token for delta in deltas for token in delta.ids]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    async def play(self, text: str) -> list[EngineDelta]:
        self.count += 1
        prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        ids, limits = self.encode(prompt), Sampling(max_tokens=500)
        request = EngineRequest(f"t{self.count}", ids, limits, self.info.eos_ids)
        async with asyncio.timeout(LIMIT_S):
            return [delta async for delta in listen(self.engine, request)]

    async def say(self, text: str) -> str:
        """The text of the output."""
        return self.text_of(await self.play(text))


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
    assert trial.text_of(deltas) == output
    assert deltas[-1].finish is FinishReason.STOP
    assert deltas[-1].stop_id == trial.info.eos_ids[0]


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


async def test_a_request_may_kill_the_engine(stage: Any) -> None:
    trial = await stage()
    other = asyncio.create_task(trial.play("[[say]]a[[silence]][[/say]]"))
    await eventually(lambda: trial.engine.load().running == 1)
    with pytest.raises(EngineDied, match="at lunch"):
        await trial.play("[[say]]a[[die at lunch]][[/say]]")
    with pytest.raises(EngineDied):
        await asyncio.wait_for(other, LIMIT_S)
    assert not trial.engine.healthy()


LONG_S = 10_000.0


async def test_prompts_are_computed_in_order_and_those_of_ended_turns_take_no_time() -> None:
    done: list[str] = []
    prefills = PrefillQueue(done.append)
    for name in "abc":
        prefills.add(name, LONG_S)
    prefills.add("d", 0.0)
    for name in "bac":
        prefills.remove(name)
    await eventually(lambda: done == ["d"])
    for name in "efg":
        prefills.add(name, 0.0)
    await eventually(lambda: done == [*"defg"])
