"""The TensorRT-LLM engine over a fake of the package, in each family of releases."""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.conversation import OutputFormat, Sampling
from schemas.errors import ContextOverflow, EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config import WorkerConfig
from services.worker.engine import (
    BlocksStored,
    CacheCleared,
    EngineDelta,
    EngineDied,
    EngineRequest,
)
from services.worker.engines import support
from services.worker.engines.registry import open_engine
from services.worker.engines.trtllm import engine as trtllm
from services.worker.engines.trtllm import pollers, readings
from services.worker.engines.trtllm.engine import TrtllmEngine
from services.worker.engines.trtllm.pollers import MAX_EVENTS, KvEventQueue, LoopGuard
from tests.kit.listening import listen
from tests.kit.waiting import eventually
from tests.worker.fake_tensorrt_llm import VERSIONS
from tests.worker.fake_tensorrt_llm.runtime import EngineDeadError

WAIT_S = 60.0
PROMPT = [(11 * i + 3) % 500 + 8 for i in range(100)]
BOTH = pytest.mark.parametrize("fake_trtllm", VERSIONS, indirect=True)
NEW = pytest.mark.parametrize("fake_trtllm", VERSIONS[3:], indirect=True)
OLD = pytest.mark.parametrize("fake_trtllm", VERSIONS[:3], indirect=True)

OWN = ("cache_salt", "guided", "grammar", "priority", "retain_s", "session")
"""Fields of `EngineRequest` beside the sampling."""
PRIORITY = pytest.mark.parametrize("fake_trtllm", VERSIONS[2:], indirect=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Configuration files are all that the adapter reads itself."""
    (tmp_path / "config.json").write_text(
        '{"vocab_size": 512, "max_position_embeddings": 4096, "eos_token_id": [5, 7]}'
    )
    return tmp_path


@pytest.fixture
async def engine(fake_trtllm: Any, model: Path) -> AsyncIterator[TrtllmEngine]:
    made = TrtllmEngine(
        WorkerConfig(model=str(model), slots=4, max_model_len=4096, watchdog_s=30.0)
    )
    await made.start()
    yield made
    await made.stop(5.0)


def request(turn: str = "t", stop_ids: tuple[int, ...] = (), **more: Any) -> EngineRequest:
    own = {name: more.pop(name) for name in OWN if name in more}
    return EngineRequest(
        turn, PROMPT, Sampling(**{"max_tokens": 16, **more}), list(stop_ids), **own
    )


async def run(engine: TrtllmEngine, asked: EngineRequest) -> list[EngineDelta]:
    async with asyncio.timeout(WAIT_S):
        return [delta async for delta in listen(engine, asked)]


async def drain(deltas: Any) -> None:
    async for _ in deltas:
        pass


@BOTH
async def test_an_engine_describes_itself(model: Path, fake_trtllm: Any) -> None:
    engine = TrtllmEngine(WorkerConfig(model=str(model), slots=4, max_model_len=4096))
    info = await engine.start()
    await engine.stop(5.0)
    assert (info.name, info.version) == ("trtllm", fake_trtllm.__version__)
    assert (info.max_model_len, info.block_tokens, info.vocab_size, info.eos_ids) == (
        4096,
        32,
        512,
        [5, 7],
    )
    assert info.kv_tokens == (32768 if fake_trtllm.__version__ in VERSIONS[3:] else None)
    assert fake_trtllm.LLM.last.kwargs["max_seq_len"] == 4096


@BOTH
async def test_every_request_has_sampling_parameters_of_its_own(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    await asyncio.gather(*(run(engine, request(f"t{i}", temperature=0.5)) for i in range(6)))
    used = [output.sampling for output in fake_trtllm.LLM.last.runtime.outputs]
    assert len({id(sampling) for sampling in used}) == 6


AGENT_LIMITS = [32_000, 64_000, 128_000]


async def open_agents(engine: TrtllmEngine, count: int) -> list[Any]:
    """Turns with the limits that agents send, cut to the window as the preprocessor does."""
    limits = [min(AGENT_LIMITS[i % len(AGENT_LIMITS)], 16_384 - len(PROMPT)) for i in range(count)]
    return [listen(engine, request(f"t{i}", max_tokens=limit)) for i, limit in enumerate(limits)]


@NEW
async def test_agents_with_large_limits_decode_at_once(model: Path, fake_trtllm: Any) -> None:
    engine = TrtllmEngine(
        WorkerConfig(model=str(model), slots=16, max_model_len=16_384, kv_tokens=16_384)
    )
    await engine.start()
    open_turns = await open_agents(engine, 16)
    async with asyncio.timeout(WAIT_S):
        first = await asyncio.gather(*(anext(deltas) for deltas in open_turns))
    assert all(delta.finish is None for delta in first)
    for deltas in open_turns:
        await deltas.aclose()
    await engine.stop(5.0)


@OLD
async def test_older_releases_reserve_the_whole_limit(model: Path, fake_trtllm: Any) -> None:
    """They would lose more by pausing: `--max-output-tokens` bounds what is reserved."""
    engine = TrtllmEngine(
        WorkerConfig(model=str(model), slots=16, max_model_len=16_384, kv_tokens=16_384)
    )
    await engine.start()
    runtime = fake_trtllm.LLM.last.runtime
    open_turns = await open_agents(engine, 3)
    async with asyncio.timeout(WAIT_S):
        await anext(open_turns[0])
        waiting = [asyncio.create_task(anext(deltas)) for deltas in open_turns[1:]]
        await eventually(lambda: len(runtime.waiting) == 2)
        assert len(runtime.running) == 1
        await open_turns[0].aclose()
        await waiting[0]
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    for deltas in open_turns:
        await deltas.aclose()
    await engine.stop(5.0)


@NEW
async def test_paused_turns_lose_and_repeat_no_token(model: Path, fake_trtllm: Any) -> None:
    config = WorkerConfig(model=str(model), slots=16, max_model_len=1024, kv_tokens=1024)
    engine = TrtllmEngine(config)
    await engine.start()
    alone = [
        token
        for delta in await run(engine, request("alone", max_tokens=700))
        for token in delta.ids
    ]
    together = await asyncio.gather(
        *(run(engine, request(f"t{i}", max_tokens=700)) for i in range(4))
    )
    assert fake_trtllm.LLM.last.runtime.pause_count > 0
    assert [[token for delta in deltas for token in delta.ids] for deltas in together] == [
        alone
    ] * 4
    await engine.stop(5.0)


@BOTH
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("own", [None, "GUARANTEED_NO_EVICT"])
async def test_requests_are_paused_only_where_that_frees_their_blocks(
    model: Path, fake_trtllm: Any, parallel: int, own: str | None
) -> None:
    args: dict[str, Any] = {"pipeline_parallel_size": parallel}
    args |= {"scheduler_config": {"capacity_scheduler_policy": own}} if own else {}
    engine = TrtllmEngine(
        WorkerConfig(model=str(model), slots=4, max_model_len=4096, engine_args=args)
    )
    await engine.start()
    await engine.stop(5.0)
    pauses = fake_trtllm.__version__ in VERSIONS[3:] and parallel == 1 and own is None
    assert fake_trtllm.LLM.last.runtime.pauses == pauses


@pytest.mark.parametrize("fake_trtllm", VERSIONS[4:], indirect=True)
async def test_a_connector_gets_the_policy_that_it_accepts(model: Path, fake_trtllm: Any) -> None:
    args = {"kv_connector_config": {"connector": "lmcache"}}
    engine = TrtllmEngine(
        WorkerConfig(model=str(model), slots=4, max_model_len=4096, engine_args=args)
    )
    await engine.start()
    assert await run(engine, request(max_tokens=2))
    await engine.stop(5.0)


@BOTH
async def test_leaving_early_aborts_and_ending_does_not(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    runtime = fake_trtllm.LLM.last.runtime
    await run(engine, request())
    deltas = listen(engine, request(max_tokens=3000))
    await asyncio.wait_for(anext(deltas), WAIT_S)
    await deltas.aclose()
    assert [output.aborts for output in runtime.outputs] == [0, 1]
    await eventually(lambda: not runtime.running)


@BOTH
async def test_abort_comes_also_before_the_first_token(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    runtime = fake_trtllm.LLM.last.runtime
    runtime.held = True
    task = asyncio.create_task(run(engine, request()))
    await eventually(lambda: bool(runtime.waiting))
    task.cancel()
    await asyncio.wait([task])
    assert runtime.outputs[0].aborts == 1


@PRIORITY
async def test_salt_and_priority_arrive(engine: TrtllmEngine, fake_trtllm: Any) -> None:
    await run(engine, request(cache_salt="tenant", priority=-1))
    (output,) = fake_trtllm.LLM.last.runtime.outputs
    assert (output.salt, output.priority) == ("tenant", 0.25)


@BOTH
async def test_a_retained_prompt_is_evicted_after_others(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    await run(engine, request())
    await run(engine, request(retain_s=300, session="s"))
    plain, retained = (
        output.cache_arguments for output in fake_trtllm.LLM.last.runtime.outputs[-2:]
    )
    assert plain == {}
    assert set(retained) == {"kv_cache_retention_config"}  # one cache: the session is of no use
    config = retained["kv_cache_retention_config"]
    for part in (*config.ranges, config.decode):
        assert (part.token_start, part.token_end, part.duration) == (
            0,
            None,
            timedelta(seconds=300),
        )
        assert part.priority > 35  # the default


@BOTH
async def test_without_reuse_nothing_is_retained(fake_trtllm: Any, model: Path) -> None:
    options = {"kv_cache_config": {"enable_block_reuse": False}}
    engine = TrtllmEngine(WorkerConfig(model=str(model), max_model_len=4096, engine_args=options))
    assert "retention" not in (await engine.start()).features
    await run(engine, request(retain_s=300))
    assert fake_trtllm.LLM.last.runtime.outputs[-1].cache_arguments == {}
    await engine.stop(5.0)


@BOTH
async def test_ranks_with_own_caches_get_the_session(fake_trtllm: Any, model: Path) -> None:
    config = WorkerConfig(
        model=str(model), max_model_len=4096, engine_args={"enable_attention_dp": True}
    )
    engine = TrtllmEngine(config)
    await engine.start()
    await run(engine, request(session="s"))
    await run(engine, request())
    with_session, without = (
        output.cache_arguments for output in fake_trtllm.LLM.last.runtime.outputs[-2:]
    )
    known = "conversation_params" in fake_trtllm.LLM.release.generate
    assert [one.conversation_id for one in with_session.values()] == ["s"] * known
    assert without == {}
    await engine.stop(5.0)


@BOTH
async def test_guided_requests_are_decoded_with_their_form(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    schema = {"type": "object"}
    await run(engine, request(guided=OutputFormat("json_schema", schema)))
    await run(engine, request(grammar='start: "x"'))
    first, second = (
        output.sampling.guided_decoding for output in fake_trtllm.LLM.last.runtime.outputs
    )
    assert (first.json, first.grammar) == (schema, None)
    assert (second.json, second.grammar) == (None, 'start: "x"')


@BOTH
@pytest.mark.parametrize("kind", ["MTP", "Eagle3", "NGram"])
@pytest.mark.parametrize("penalties", [False, True])
async def test_speculative_decoding_gets_no_field_that_it_does_not_apply(
    model: Path, fake_trtllm: Any, kind: str, penalties: bool
) -> None:
    """Nor the model's own defaults, for which newer releases would refuse every turn."""
    own = '{"do_sample": true, "temperature": 0.6, "repetition_penalty": 1.05, "min_p": 0.05}'
    (model / "generation_config.json").write_text(own)
    drafts = {"decoding_type": kind, "max_draft_len": 3} | (
        {"enable_penalty": True} if penalties else {}
    )
    engine = TrtllmEngine(
        WorkerConfig(model=str(model), slots=4, engine_args={"speculative_config": drafts})
    )
    info = await engine.start()
    assert (await run(engine, request(max_tokens=4)))[-1].finish is not None
    sent = fake_trtllm.LLM.last.runtime.outputs[-1].sampling
    new, outside = fake_trtllm.__version__ in VERSIONS[3:], kind == "NGram"
    has_penalties, has_min_p = new and (outside or penalties), new and outside
    assert (sent.temperature, sent.repetition_penalty, sent.min_p) == (
        0.6,
        1.05 if has_penalties else None,
        0.05 if has_min_p else None,
    )
    assert ("penalties" in info.features, "min_p" in info.features) == (has_penalties, has_min_p)
    assert {"sampling", "logprobs"} <= info.features
    if not outside:
        assert not {"min_tokens", "logit_bias", "seed"} & info.features
        assert "speculative_config" in info.lacking["logit_bias"]
    await engine.stop(5.0)


@BOTH
async def test_more_log_probabilities_than_the_library_has_are_refused(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    assert await run(engine, request(logprobs=100, max_tokens=2))
    if fake_trtllm.__version__ in VERSIONS[4:]:
        with pytest.raises(Invalid, match="less than or equal to 100"):
            await run(engine, request(logprobs=101))
    assert engine.healthy()


@BOTH
async def test_an_argument_that_a_release_removed_is_named(fake_trtllm: Any, model: Path) -> None:
    for value, refused in (
        ("auto", False),
        ("TRTLLMSampler", fake_trtllm.__version__ in VERSIONS[4:]),
    ):
        engine = TrtllmEngine(WorkerConfig(model=str(model), engine_args={"sampler_type": value}))
        with (
            pytest.raises(EngineFailed, match="sampler_type")
            if refused
            else contextlib.nullcontext()
        ):
            await engine.start()
            await engine.stop(5.0)


@BOTH
@pytest.mark.parametrize(
    "error", [ValueError, TypeError, NotImplementedError, AssertionError, "RequestError"]
)
async def test_a_call_that_is_refused_ends_that_turn_alone(
    engine: TrtllmEngine, fake_trtllm: Any, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    kind = fake_trtllm.llmapi.RequestError if error == "RequestError" else error

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise kind("prompt length 9000 exceeds max_num_tokens 8192")

    with monkeypatch.context() as patch:
        patch.setattr(fake_trtllm.LLM.last, "generate_async", refuse)
        with pytest.raises(Invalid, match="max_num_tokens"):
            await run(engine, request())
    assert engine.healthy()
    assert engine.load().running == 0
    assert await run(engine, request())


@BOTH
@pytest.mark.parametrize("error", ["RequestError", ValueError, AssertionError])
async def test_an_error_of_one_request_ends_it_in_mid_stream(
    engine: TrtllmEngine, fake_trtllm: Any, error: Any
) -> None:
    """Its own, or one that the library raises while it reads the response: other requests go on,
    and it is aborted."""
    kind = fake_trtllm.llmapi.RequestError if error == "RequestError" else error
    deltas = listen(engine, request("bad", max_tokens=3000))
    await asyncio.wait_for(anext(deltas), WAIT_S)
    other = listen(engine, request("other", max_tokens=500))
    await asyncio.wait_for(anext(other), WAIT_S)
    first = fake_trtllm.LLM.last.runtime.outputs[0]
    first.deliver(kind("bad word"))
    with pytest.raises(EngineFailed, match="bad word") as caught:
        await asyncio.wait_for(drain(deltas), WAIT_S)
    assert not isinstance(caught.value, EngineDied)
    assert first.aborts == 1
    assert engine.healthy()
    await asyncio.wait_for(drain(other), WAIT_S)


@BOTH
async def test_an_executor_that_is_shut_down_makes_any_error_the_end(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    turns = [listen(engine, request(f"t{i}", max_tokens=3000)) for i in range(3)]
    await asyncio.wait_for(asyncio.gather(*(anext(deltas) for deltas in turns)), WAIT_S)
    fake_trtllm.LLM.last._executor.doing_shutdown = True
    fake_trtllm.LLM.last.runtime.outputs[1].deliver(KeyError("a dispatch thread's"))
    for deltas in turns:
        with pytest.raises(EngineDied, match="a dispatch thread's"):
            await asyncio.wait_for(drain(deltas), WAIT_S)
    assert not engine.healthy()


@NEW
async def test_death_at_submit_is_the_death_of_all(engine: TrtllmEngine, fake_trtllm: Any) -> None:
    deltas = listen(engine, request("open", max_tokens=3000))
    await asyncio.wait_for(anext(deltas), WAIT_S)

    def dead(*args: Any, **kwargs: Any) -> None:
        raise EngineDeadError("MPI rank 3 was killed")

    fake_trtllm.LLM.last.generate_async = dead
    with pytest.raises(EngineDied, match="rank 3"):
        await run(engine, request("new"))
    with pytest.raises(EngineDied, match="rank 3"):
        await asyncio.wait_for(drain(deltas), WAIT_S)
    assert not engine.healthy()


@NEW
async def test_the_window_is_the_workers(fake_trtllm: Any, model: Path) -> None:
    """Its cache may hold less than the model's window, which is all that this process knows."""
    fake_trtllm.LLM.worker_window = 300
    engine = TrtllmEngine(WorkerConfig(model=str(model), max_model_len=4096))
    info = await engine.start()
    assert info.max_model_len == 300
    assert (
        len([token for delta in await run(engine, request(max_tokens=200)) for token in delta.ids])
        == 200
    )
    with pytest.raises(ContextOverflow, match="100 \\+ 201 > 300"):
        await run(engine, request(max_tokens=201))
    await engine.stop(5.0)


@OLD
async def test_older_releases_show_the_window_when_they_cut_or_refuse(
    fake_trtllm: Any, model: Path
) -> None:
    fake_trtllm.LLM.worker_window = 300
    engine = TrtllmEngine(WorkerConfig(model=str(model), max_model_len=4096))
    assert (await engine.start()).max_model_len == 4096
    cut = await run(engine, request(max_tokens=400))
    assert (cut[-1].finish, sum(len(delta.ids) for delta in cut)) == (FinishReason.LENGTH, 200)
    with pytest.raises(ContextOverflow, match="100 \\+ 400 > 300"):
        await run(engine, request(max_tokens=400))
    fake_trtllm.LLM.last.runtime._window = 90
    with pytest.raises(ContextOverflow, match="100 tokens > 90"):
        await run(engine, request(max_tokens=2))
    assert engine.healthy()
    await engine.stop(5.0)


async def test_a_blocked_event_loop_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pollers, "GUARD_INTERVAL_S", 0.01)
    left: list[int] = []
    gone = threading.Event()

    def leave(status: int) -> None:
        left.append(status)
        gone.set()

    guard = LoopGuard(2.0, leave)
    await asyncio.sleep(0.2)
    assert not left, "it runs"
    assert gone.wait(WAIT_S), "blocks the loop"
    assert left == [1]
    guard.stop()


@BOTH
async def test_any_other_error_of_an_iterator_is_the_end(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    turns = [listen(engine, request(f"t{i}", max_tokens=3000)) for i in range(3)]
    await asyncio.wait_for(asyncio.gather(*(anext(deltas) for deltas in turns)), WAIT_S)
    fake_trtllm.LLM.last.runtime.outputs[1].deliver(RuntimeError("NCCL: unhandled system error"))
    for deltas in turns:
        with pytest.raises(EngineDied, match="NCCL"):
            await asyncio.wait_for(drain(deltas), WAIT_S)
    assert not engine.healthy()


@BOTH
async def test_an_engine_that_shuts_down_by_itself_is_dead(
    engine: TrtllmEngine, fake_trtllm: Any
) -> None:
    fake_trtllm.LLM.last.shutdowns = 1
    with pytest.raises(EngineDied, match="shutting down"):
        await run(engine, request())
    assert not engine.healthy()


@OLD
async def test_silence_is_death_after_a_while(fake_trtllm: Any, model: Path) -> None:
    engine = TrtllmEngine(WorkerConfig(model=str(model), max_model_len=4096, watchdog_s=0.3))
    await engine.start()
    deltas = listen(engine, request(max_tokens=3000))
    await asyncio.wait_for(anext(deltas), WAIT_S)
    fake_trtllm.LLM.last.runtime.kill()
    with pytest.raises(EngineDied, match="reported nothing"):
        await asyncio.wait_for(drain(deltas), WAIT_S)
    await engine.stop(1.0)


@OLD
async def test_idleness_is_not_silence(
    fake_trtllm: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request after an hour gets the whole time of the watchdog."""
    ahead, reads = [0.0], [0]

    def monotonic() -> float:
        reads[0] += 1
        return time.monotonic() + ahead[0]

    monkeypatch.setattr(support, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(trtllm, "WATCH_INTERVAL_S", 0.01)
    engine = TrtllmEngine(WorkerConfig(model=str(model), max_model_len=4096, watchdog_s=600.0))
    await engine.start()
    runtime = fake_trtllm.LLM.last.runtime
    runtime.held = True
    ahead[0] = 3600.0
    task = asyncio.create_task(run(engine, request()))
    await eventually(lambda: bool(runtime.waiting))
    judged = reads[0] + 3
    await eventually(lambda: reads[0] > judged)
    assert engine.healthy()
    runtime.held = False
    assert await task
    await engine.stop(5.0)


@NEW
async def test_a_failed_health_check_is_death(
    fake_trtllm: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "HEALTH_INTERVAL_S", 0.01)
    engine = TrtllmEngine(WorkerConfig(model=str(model), max_model_len=4096))
    await engine.start()
    await run(engine, request())
    assert engine.healthy()
    fake_trtllm.LLM.last.runtime.dead = True
    await eventually(lambda: not engine.healthy())
    with pytest.raises(EngineDied, match="health check failed"):
        await run(engine, request())
    await engine.stop(1.0)


@NEW
async def test_a_health_check_that_hangs_is_death(
    fake_trtllm: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "HEALTH_INTERVAL_S", 0.01)
    monkeypatch.setattr(readings, "HEALTH_TIMEOUT_S", 0.1)
    monkeypatch.setattr(trtllm, "WATCH_INTERVAL_S", 0.01)
    engine = TrtllmEngine(WorkerConfig(model=str(model), max_model_len=4096))
    await engine.start()
    release = threading.Event()
    fake_trtllm.LLM.last._check_health = lambda: release.wait(WAIT_S)
    with contextlib.suppress(EngineDied):  # on a loaded machine even this one notices it
        await run(engine, request())
    await eventually(lambda: not engine.healthy())
    with pytest.raises(EngineDied, match="did not return"):
        await run(engine, request())
    release.set()
    await engine.stop(1.0)


@BOTH
async def test_kv_events_from_the_first_response_on(engine: TrtllmEngine) -> None:
    events = engine.kv_events()
    reader = asyncio.ensure_future(anext(events))
    await asyncio.wait([reader], timeout=0.05)
    assert not reader.done()
    await run(engine, request())
    first = await asyncio.wait_for(reader, WAIT_S)
    assert isinstance(first, BlocksStored)
    assert first == BlocksStored(None, [(first.blocks[0][0], PROMPT[:32])])
    second = await asyncio.wait_for(anext(events), WAIT_S)
    assert isinstance(second, BlocksStored)
    assert second.blocks[0][1] == PROMPT[32:64]
    await engine.stop(5.0)
    async with asyncio.timeout(WAIT_S):
        assert all([isinstance(event, BlocksStored) async for event in events])


@BOTH
async def test_load_has_the_use_of_the_cache(
    engine: TrtllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "STATS_INTERVAL_S", 0.01)
    assert engine.load().kv_used is None
    await run(engine, request())
    await eventually(lambda: engine.load().kv_used is not None)


async def test_a_slow_reader_gets_a_cleared_cache() -> None:
    queue = KvEventQueue()
    queue.put([BlocksStored(None, [(i, [i])]) for i in range(MAX_EVENTS + 1)])
    queue.close()
    assert [event async for event in queue.read()] == [CacheCleared()]


@BOTH
async def test_stop_aborts_ends_and_shuts_down(engine: TrtllmEngine, fake_trtllm: Any) -> None:
    deltas = listen(engine, request(max_tokens=3000))
    await asyncio.wait_for(anext(deltas), WAIT_S)
    rest = asyncio.create_task(run_rest(deltas))
    await asyncio.wait_for(engine.stop(5.0), WAIT_S)
    assert (await rest)[-1].finish is FinishReason.CANCELLED
    assert fake_trtllm.LLM.last.shutdowns == 1
    assert not [
        thread for thread in threading.enumerate() if thread.name in {"trtllm-stats", "trtllm-kv"}
    ]


async def run_rest(deltas: Any) -> list[EngineDelta]:
    return [delta async for delta in deltas]


@OLD
async def test_stop_keeps_its_deadline(engine: TrtllmEngine, fake_trtllm: Any) -> None:
    release = threading.Event()
    fake_trtllm.LLM.last.shutdown = lambda: release.wait(WAIT_S)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await engine.stop(0.2)
    assert loop.time() - started < WAIT_S / 2, "it did not wait for the shutdown"
    release.set()


async def test_a_missing_package_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(ImportError, match="tensorrt_llm"):
        await open_engine("trtllm", WorkerConfig(model=str(model), engine="trtllm")).start()


@BOTH
async def test_the_constructors_error_is_passed_on(fake_trtllm: Any, model: Path) -> None:
    config = WorkerConfig(model=str(model), engine_args={"tensor_paralell_size": 2})
    with pytest.raises(EngineFailed, match="invalid argument: tensor_paralell_size"):
        await TrtllmEngine(config).start()
