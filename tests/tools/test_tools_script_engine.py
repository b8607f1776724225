"""The script engine: what it says, when, and what a request can make it do."""

import asyncio
import json
import math
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
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
from tests.kit.waiting import LIMIT_S, eventually
from turnwire_tools.script.engine import BLOCK_TOKENS, ScriptEngine
from turnwire_tools.script.stream import synthetic_logprobs

REPOSITORY = Path(__file__).parents[2]


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

    def request(
        self,
        text: str,
        *,
        history: str = "",
        resume: Sequence[int] = (),
        priority: float = 0,
        max_tokens: int = 500,
    ) -> EngineRequest:
        self.count += 1
        prompt = f"{history}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return EngineRequest(
            f"t{self.count}",
            [*self.encode(prompt), *resume],
            Sampling(max_tokens=max_tokens),
            self.info.eos_ids,
            resumed=len(resume),
            priority=priority,
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


async def test_family_is_detected_from_the_template(stage: Any) -> None:
    trial = await stage(script_mode="agent")
    tool = '{"name": "sh", "parameters": {"required": ["command"], "properties": {"command": {}}}}'
    said = await trial.say("Run `ls`", history=f"<|im_start|>system\n{tool}<|im_end|>\n")
    parameter = "<parameter=command>\nls\n</parameter>"
    assert said.endswith(f"<tool_call>\n<function=sh>\n{parameter}\n</function>\n</tool_call>")


async def test_scripts_continue_while_the_agents_first_reply_waits_for_its_family(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hello.txt").write_text("Hello.")
    trial = await stage(script_dir=str(tmp_path), script_mode="agent")
    detecting, release, calls = threading.Event(), threading.Event(), []

    def slow(*_: object) -> None:
        calls.append(1)
        detecting.set()
        release.wait(LIMIT_S)

    monkeypatch.setattr("turnwire_tools.script.engine.detect_family", slow)
    replies = [asyncio.create_task(trial.say("What are you?")) for _ in range(3)]
    await eventually(detecting.is_set)
    assert await trial.say("[[play hello]]") == "Hello."
    release.set()
    assert all("demo engine" in reply for reply in await asyncio.gather(*replies))
    assert len(calls) == 1


FIRST_REPLY = """
import asyncio, sys
from tokenizers import Tokenizer
from schemas.conversation import Sampling
from services.runtime.config import WorkerConfig
from services.worker.engine import EngineRequest
from turnwire_tools.script.engine import ScriptEngine
from tests.kit.listening import listen

async def main(model):
    engine = ScriptEngine(WorkerConfig(model=model, script_mode="request", token_delay_ms=0.0))
    await engine.start()
    ids = Tokenizer.from_file(f"{model}/tokenizer.json").encode("<|im_start|>user\\nHi.<|im_end|>\\n").ids
    deltas = [delta async for delta in listen(engine, EngineRequest("t1", ids, Sampling(max_tokens=500), []))]
    assert any(delta.ids for delta in deltas)
    print(*sorted({"transformers", "torch"} & sys.modules.keys()))
    await engine.stop(1.0)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
async def test_the_agents_first_reply_imports_no_transformers(demo_dir: Path) -> None:
    """Its import would stop the worker's event loop for seconds, whatever thread does it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FIRST_REPLY, str(demo_dir)),
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    async with asyncio.timeout(LIMIT_S * 2):
        output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.split() == []


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


async def test_a_script_plays_once_wherever_the_client_puts_its_name(
    stage: Any, tmp_path: Path
) -> None:
    """Claude Code puts a long message after the user's. A script with a call is not played again
    for the result."""
    (tmp_path / "hello.txt").write_text("Hello there.")
    trial = await stage(script_dir=str(tmp_path), script_mode="agent", family="qwen3_coder")
    wrapped = "[[play hello]]<|im_end|>\n<|im_start|>system\n" + "Environment. " * 300
    assert await trial.say(wrapped) == "Hello there."
    turn = "<|im_start|>user\n[[play hello]]<|im_end|>\n<|im_start|>assistant\ncall<|im_end|>\n"
    result = "<tool_response>\nseen\n</tool_response>"
    assert (await trial.say(result, history=turn)).endswith("Done; the tool answered: seen")


async def test_a_broken_script_file_is_refused_at_the_start(stage: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json"):
        await stage(script_dir=str(tmp_path))


async def test_marks_are_written_when_the_next_token_goes_out(stage: Any, tmp_path: Path) -> None:
    scripts, marks = tmp_path / "scripts", tmp_path / "marks"
    scripts.mkdir()
    (scripts / "m.json").write_text(
        json.dumps(["one", {"mark": "middle"}, " two", {"mark": "end"}])
    )
    trial = await stage(script_dir=str(scripts), engine_args={"marks": str(marks)})
    before = time.monotonic_ns()
    await trial.play("[[play m id=r7]]")
    lines = [line.split() for line in marks.read_text().splitlines()]
    assert [line[:2] for line in lines] == [["r7", "middle"], ["r7", "end"]]
    assert all(before <= int(line[2]) <= time.monotonic_ns() for line in lines)


async def test_streams_of_one_pace_go_in_step(stage: Any) -> None:
    trial = await stage(token_delay_ms=20.0)
    tokens = [0] * 16
    leads: list[int] = []

    async def hear(number: int) -> None:
        async for _ in listen(trial.engine, trial.request("[[say]][[fill 8]][[/say]]")):
            tokens[number] += 1
            leads.append(max(tokens) - min(tokens))

    started = time.monotonic()
    await asyncio.gather(*map(hear, range(16)))
    assert time.monotonic() - started > 0.1
    assert max(leads) <= 2, "no stream is ahead of another by more than the token at which it began"


async def test_a_request_may_change_its_own_pace(stage: Any) -> None:
    trial = await stage(token_delay_ms=10_000.0)
    started = time.monotonic()
    await trial.play("[[say]][[delay 0]]quick as can be[[/say]]")
    assert time.monotonic() - started < 30, "three tokens at the engine's own pace"
    slow = await stage()
    started = time.monotonic()
    await slow.play("[[say]]a[[pause 120]]b[[/say]]")
    assert time.monotonic() - started >= 0.12


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


async def test_prompts_are_prefilled_one_after_the_other(stage: Any) -> None:
    trial = await stage(prefill_tokens_per_s=20_000.0)
    texts = [f"{i} " + "word " * 1000 + "[[say]]yes[[/say]]" for i in range(3)]
    tokens = sum(len(trial.request(text).token_ids) for text in texts)
    started = time.monotonic()
    await asyncio.gather(*map(trial.play, texts))
    assert time.monotonic() - started >= tokens / 20_000 * 0.95


async def test_cancelling_in_prefill_leaves_nothing_cached(stage: Any) -> None:
    trial = await stage(prefill_tokens_per_s=1000.0)
    text = "word " * 500 + "[[say]]yes[[/say]]"
    request = trial.request(text)
    task = asyncio.create_task(anext(listen(trial.engine, request)))
    await eventually(lambda: trial.engine.load().running == 1)
    task.cancel()
    await asyncio.wait([task])
    assert trial.engine.load().running == 0
    assert (await trial.play(text))[0].cached == 0


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


async def test_silence_lasts_until_it_is_cancelled(stage: Any) -> None:
    trial = await stage(slots=1)
    deltas = await trial.begin("[[say]]a[[silence]]b[[/say]]")
    silent = asyncio.ensure_future(anext(deltas))
    await asyncio.wait([silent], timeout=0.05)
    assert not silent.done()
    silent.cancel()
    await asyncio.wait([silent])
    assert await trial.say("[[say]]next[[/say]]") == "next"


async def test_greater_priority_is_sooner(stage: Any) -> None:
    trial = await stage(slots=1)
    holder = await trial.begin("[[say]]a[[silence]][[/say]]")
    order: list[float] = []

    async def wait(priority: float) -> None:
        await trial.play("[[say]]x[[/say]]", priority=priority)
        order.append(priority)

    waiting = [asyncio.create_task(wait(priority)) for priority in (0, -1, 5, 0.9)]
    await eventually(lambda: trial.engine.load().waiting == 4)
    await holder.aclose()
    await asyncio.wait_for(asyncio.gather(*waiting), LIMIT_S)
    assert order == [5, 0.9, 0, -1]


async def test_another_worker_continues_where_one_died(stage: Any) -> None:
    first, second = await stage(), await stage()
    text = "[[say]]Once [[fill 40]][[die]] upon a time[[/say]]"
    heard = await first.fail(text, EngineDied)
    whole = second.decode(heard) + await second.say(text, resume=heard)
    assert whole.startswith("Once Every engine")
    assert whole.endswith(" upon a time")


async def test_cache_has_the_configured_size(stage: Any) -> None:
    trial = await stage(kv_tokens=640)
    text = "word " * 300 + "[[say]]yes[[/say]]"
    await trial.play(text, max_tokens=8)
    await trial.play("other " * 500 + "[[say]]yes[[/say]]", max_tokens=8)
    assert trial.info.kv_tokens == 640
    # Of the older prompt only the beginning is left.
    assert 0 < ((await trial.play(text, max_tokens=8))[0].cached or 0) < 300 // 2


async def test_kv_use_is_reported_and_freed(stage: Any) -> None:
    trial = await stage(kv_tokens=1000)
    deltas = await trial.begin("word " * 400 + "[[say]]a[[silence]][[/say]]")
    used = trial.engine.load().kv_used
    assert used is not None
    assert 0.4 < used < 0.6
    await deltas.aclose()
    assert trial.engine.load().kv_used == 0.0


async def test_bad_directive_is_an_invalid_request(stage: Any) -> None:
    trial = await stage()
    with pytest.raises(Invalid, match="needs a number"):
        await trial.play("[[say]][[pause soon]][[/say]]")
    assert trial.engine.load().running == 0
    assert await trial.say("[[say]]on[[/say]]") == "on"


def test_made_up_log_probabilities_are_plausible() -> None:
    for token in range(0, 4000, 37):
        pairs = synthetic_logprobs(token, token % 11, 20, 4096)
        assert pairs[0][0] == token
        assert len({other for other, _ in pairs}) == 21
        assert [value for _, value in pairs] == sorted((value for _, value in pairs), reverse=True)
        assert sum(math.exp(value) for _, value in pairs) < 1.0
    assert synthetic_logprobs(5, 0, 3, 4096) != synthetic_logprobs(5, 1, 3, 4096)
