"""The engine over `vllm serve`: what it finds out at the start, and what it does when the server
refuses, breaks, hangs, lies or dies."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from schemas.errors import (
    ENGINE_DIED,
    EngineFailed,
    Invalid,
    Overloaded,
    TooLarge,
    TurnwireError,
)
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDied, EngineInfo
from services.worker.engines.remote import server_start, server_turn, server_watch
from services.worker.engines.remote.event_reader import BadAnswer
from services.worker.engines.remote.model_check import compare_names
from services.worker.engines.remote.vllm.dialect import VllmServer
from tests.kit.certificates import Authority
from tests.kit.engines import EMPTY_MODEL, begun, ids_of, request, rest, run
from tests.kit.listening import listen
from tests.kit.nats import free_port
from tests.kit.waiting import LIMIT_S, eventually
from tests.worker.fake_vllm_server import FakeVllmServer, fake_vllm_server

SHORT_S = 0.05

pytestmark = pytest.mark.usefixtures("fake_vllm")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intervals of the engine, for servers that answer at once."""
    monkeypatch.setattr(server_start, "RETRY_S", SHORT_S)
    monkeypatch.setattr(server_turn, "RETRY_S", SHORT_S)
    monkeypatch.setattr(server_watch, "PULSE_S", SHORT_S)
    monkeypatch.setattr(server_turn, "BUSY_S", 6 * SHORT_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that does not wait for its server."""
    monkeypatch.setattr(server_start, "START_S", SHORT_S)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(EMPTY_MODEL)
    return tmp_path


@asynccontextmanager
async def started(server: FakeVllmServer, model: Path, **options: Any) -> AsyncIterator[VllmServer]:
    """An engine over a server."""
    engine = VllmServer(WorkerConfig(model=str(model), engine_url=server.url, **options))
    await engine.start()
    server.requests.clear()
    server.engine.aborted.clear()
    try:
        yield engine
    finally:
        await engine.stop(1.0)


async def start(url: str, model: Path, **options: Any) -> EngineInfo:
    """Starts an engine and stops it. Raises the error of the start."""
    engine = VllmServer(WorkerConfig(model=str(model), engine_url=url, **options))
    async with asyncio.timeout(LIMIT_S):
        info = await engine.start()
        await engine.stop(1.0)
    return info


@asynccontextmanager
async def other_server(**answers: web.Response) -> AsyncIterator[str]:
    """The address of a server that answers GETs by the last part of their path, or with 404."""

    async def answer(asked: web.Request) -> web.Response:
        name = asked.path.rpartition("/")[2]
        return answers.get(name) or web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


# -- the start
# --------------------------------------------------------------------------------------------------


async def test_start_waits_for_a_server_that_is_not_up_yet(model: Path) -> None:
    server, port = FakeVllmServer(), free_port()
    server.refusals = [503]  # it loads
    starting = asyncio.create_task(start(f"http://127.0.0.1:{port}", model))
    await asyncio.sleep(3 * SHORT_S)
    assert not starting.done()
    await server.open(port)
    await starting
    assert not server.refusals
    await server.close()


@pytest.mark.usefixtures("impatient")
async def test_wrong_address_is_named(model: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EngineFailed, match=f"no inference server answers at {url}: .*connect"):
        await start(url, model)
    with pytest.raises(Invalid, match="name one inference server"):
        await start("", model)
    for answers in (
        {},
        {"version": web.json_response({"status": "ok"})},
        {"version": web.Response(text="<html>", content_type="text/html")},
    ):
        async with other_server(**answers) as url:
            with pytest.raises(EngineFailed, match=f"{url} is another kind of server"):
                await start(url, model)


async def test_server_without_the_token_interface_needs_a_flag(model: Path) -> None:
    async with fake_vllm_server(scale_out=False) as server:
        with pytest.raises(Invalid, match=r"token interface \(status 403.*--enable-scale-out"):
            await start(server.url, model)
    async with other_server(version=web.json_response({"version": "0.9"})) as url:
        with pytest.raises(Invalid, match=r"token interface \(status 404.*--enable-scale-out"):
            await start(url, model)


async def test_key_of_a_file_is_sent(model: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    async with fake_vllm_server(key="secret") as server:
        for wrong in ({}, {"engine_api_key_file": str(key)}):
            key.write_text("wrong\n")
            with pytest.raises(EngineFailed, match=r"\(--engine-api-key-file\): status 401"):
                await start(server.url, model, **wrong)
        key.write_text("secret\n")
        async with started(server, model, engine_api_key_file=str(key)) as engine:
            assert await run(engine, request())


async def test_certificate_must_be_trusted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("home")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.write(tmp_path, "server"))
    async with fake_vllm_server(tls=context) as server:
        with pytest.raises(EngineFailed, match=r"certificate verify failed.*SSL_CERT_FILE"):
            await start(server.url, model)
        monkeypatch.setenv("SSL_CERT_FILE", authority.write_self(tmp_path / "home.pem"))
        await start(server.url, model)


async def test_smaller_vocabulary_is_another_model(model: Path) -> None:
    (model / "config.json").write_text(EMPTY_MODEL.replace("512", "1024"))
    async with fake_vllm_server() as server:
        with pytest.raises(Invalid, match=r"another model .* refuses token 1023 .* of 1024"):
            await start(server.url, model)


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_server_that_refuses_to_encode_is_not_taken_for_one_without_a_tokenizer(
    model: Path, status: int
) -> None:
    async with fake_vllm_server() as server:
        server.tokenizes = status, "not now"
        with pytest.raises(EngineFailed, match=f"status {status}: not now"):
            await start(server.url, model)
        server.tokenizes = 400, "Tokenizer not available when `skip_tokenizer_init=True`"
        await start(server.url, model)


async def test_other_tokenizer_is_another_model(demo_dir: Path) -> None:
    async with fake_vllm_server() as server:
        server.tokenizes = 200, ""
        with pytest.raises(Invalid, match="makes other tokens of a text"):
            await start(server.url, demo_dir)


@pytest.mark.parametrize(
    ("root", "model", "differs"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", True),
        ("nvidia/qwen3-8b-FP8", "Qwen/Qwen3-8B", False),
        ("/models/Qwen3-8B", "Qwen/Qwen3-0.6B", False),
        ("Qwen/Qwen3-8B", "./models/small", False),
    ],
)
def test_names_of_the_hub_that_differ_are_noted(root: str, model: str, differs: bool) -> None:
    assert (compare_names(root, model) is not None) == differs


@pytest.mark.parametrize(
    ("ignored", "lacking"),
    [
        ("min_tokens", {"min_tokens": "ignores"}),
        ("logit_bias", {"logit_bias": "ignores"}),
        ("logprobs", dict.fromkeys(("logprobs", "top_logprobs"), "probabilities are missing")),
    ],
)
async def test_ignored_field_is_a_feature_that_is_missing(
    model: Path, ignored: str, lacking: dict[str, str]
) -> None:
    async with fake_vllm_server() as server:
        server.ignored.add(ignored)
        _check_lacking(await start(server.url, model), lacking)


async def test_ignored_seed_is_found_where_tokens_differ(model: Path) -> None:
    async with fake_vllm_server() as server:
        _check_lacking(await start(server.url, model), {})

        def sample(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
            if "seed" in server.requests[-1]["sampling_params"]:
                for choice in events[0]["choices"]:
                    choice["token_ids"] = [random.randrange(8, 500)]
            return events

        server.lie = sample
        _check_lacking(await start(server.url, model), {"seed": "ignores"})


async def test_refused_field_is_missing_with_the_reason_of_the_server(model: Path) -> None:
    async with fake_vllm_server(scheduling_policy="fcfs") as server:
        info = await start(server.url, model)
        _check_lacking(
            info, {"priority": "is not enabled. (its flag: `--scheduling-policy priority`)"}
        )
        async with started(server, model) as engine:
            assert await run(engine, request(priority=3.0)), "a hint"


async def test_busy_server_lacks_nothing_it_is_not_started(model: Path) -> None:
    """Without a salt, tenants would share blocks until the next start."""
    async with fake_vllm_server() as server:
        server.busy_for = "cache_salt"
        with pytest.raises(EngineFailed, match=r"trial of salt failed: .* status 503"):
            await start(server.url, model)


async def test_feature_at_which_the_server_fails_is_missing(model: Path) -> None:
    """As guided decoding in vLLM does with a tokenizer that its library cannot read."""
    async with fake_vllm_server() as server:
        server.fails_at = "structured_outputs"
        info = await start(server.url, model)
        reason = "Internal server error"
        _check_lacking(info, {"guided": reason, "grammar": reason})


async def test_missing_metrics_are_not_an_empty_cache_without_prefixes(model: Path) -> None:
    async with fake_vllm_server() as server:
        server.kv_used = [0.2, 0.6]
        async with started(server, model) as engine:
            assert engine.load().kv_used == pytest.approx(0.4)
        server.counts = False
        info = await start(server.url, model)
        _check_lacking(info, {"prefix_cache": "--disable-log-stats"})
        assert "--disable-log-stats" in info.lacking["kv_events"]
        async with started(server, model) as engine:
            assert engine.load().kv_used is None


async def test_salt_that_cannot_be_verified_is_missing(model: Path) -> None:
    async with fake_vllm_server(reports_cached=False) as server:
        info = await start(server.url, model)
        _check_lacking(info, {"salt": "--enable-prompt-tokens-details"})


async def test_server_that_ignores_stop_ids_cannot_serve(model: Path) -> None:
    async with fake_vllm_server() as server:
        server.ignored.add("stop_token_ids")
        with pytest.raises(EngineFailed, match="goes on after a stop token"):
            await start(server.url, model)


def _check_lacking(info: EngineInfo, lacking: dict[str, str]) -> None:
    """Checks what an engine lacks beside what it lacks over every server."""
    always = {"retention", "kv_events", "vision"}
    found = {name: why for name, why in info.lacking.items() if name not in always}
    assert found.keys() == lacking.keys()
    for name, reason in lacking.items():
        assert reason in found[name]


# -- turns
# --------------------------------------------------------------------------------------------------


@pytest.fixture
async def server(model: Path) -> AsyncIterator[FakeVllmServer]:
    async with fake_vllm_server() as server:
        yield server


@pytest.fixture
async def engine(server: FakeVllmServer, model: Path) -> AsyncIterator[VllmServer]:
    async with started(server, model) as engine:
        yield engine


async def test_broken_connection_ends_its_turn_and_not_the_engine(
    server: FakeVllmServer, engine: VllmServer
) -> None:
    deltas = await begun(engine, request(max_tokens=3000))
    server.drop()
    with pytest.raises(EngineDied, match=r"the connection to .* broke"):
        await rest(deltas)
    assert engine.healthy()
    assert len(ids_of(await run(engine, request()))) == 16


async def test_busy_server_is_asked_again(server: FakeVllmServer, engine: VllmServer) -> None:
    server.refusals = [429, 503, 502]
    assert len(ids_of(await run(engine, request()))) == 16
    assert not server.refusals


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, Overloaded),
        (503, Overloaded),
        (500, EngineDied),
        (504, EngineDied),
        (401, EngineFailed),
        (413, TooLarge),
        (400, Invalid),
    ],
)
async def test_refusal_ends_its_turn(
    server: FakeVllmServer, engine: VllmServer, status: int, kind: type[TurnwireError]
) -> None:
    """A turn with an error that says so is continued on another worker."""
    server.refusals = [status] * 100
    with pytest.raises(kind, match=f"status {status}: not now") as caught:
        await run(engine, request())
    goes_on = status in (429, 500, 503, 504)
    assert (caught.value.info.code == ENGINE_DIED) == goes_on
    assert engine.healthy()
    server.refusals.clear()
    assert await run(engine, request())


async def test_broken_answer_ends_its_turn_here_and_on_the_server(
    server: FakeVllmServer, engine: VllmServer
) -> None:
    sent = 0

    def lose_one(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        nonlocal sent
        sent += 1
        return [] if sent == 3 else events

    server.lie = lose_one
    deltas = listen(engine, request("broken", max_tokens=3000))
    with pytest.raises(BadAnswer, match="3 tokens have arrived, but it has sent 4"):
        await rest(deltas)
    await eventually(lambda: server.engine.aborted == ["generate-tokens-broken"])
    await eventually(lambda: server.aborted == ["generate-tokens-broken"])
    assert engine.healthy()


async def test_closed_turn_is_closed_on_the_server(
    server: FakeVllmServer, engine: VllmServer
) -> None:
    """The connection is closed, and the abort posted."""
    deltas = await begun(engine, request("closed", max_tokens=3000))
    await deltas.aclose()
    await eventually(lambda: server.engine.aborted == ["generate-tokens-closed"])
    await eventually(lambda: server.aborted == ["generate-tokens-closed"])
    assert engine.load().running == 0


async def test_stop_closes_turns_on_the_server(server: FakeVllmServer, engine: VllmServer) -> None:
    deltas = await begun(engine, request("stopped", max_tokens=3000))
    await engine.stop(1.0)
    assert (await rest(deltas))[-1].finish == "cancelled"
    await eventually(lambda: server.engine.aborted == ["generate-tokens-stopped"])


# -- the death of a server
# --------------------------------------------------------------------------------------------------


def hang(server: FakeVllmServer) -> None:
    server.engine.gate.clear()
    server.hangs = True


def start_again(server: FakeVllmServer) -> None:
    server.started += 1.0


def count_from_zero(server: FakeVllmServer) -> None:
    server.steps = 0.0


def lose_engine(server: FakeVllmServer) -> None:
    """The process that decodes has died; the one that answers requests reports it."""
    server.engine.kill()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (hang, "does not answer: no answer in time"),
        (start_again, "was started again"),
        (count_from_zero, "was started again"),
        (lose_engine, "is gone: .*EngineCore"),
        (FakeVllmServer.kill, "does not answer|is gone"),
    ],
)
async def test_dead_server_is_a_dead_engine(
    server: FakeVllmServer,
    engine: VllmServer,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[FakeVllmServer], None],
    reason: str,
) -> None:
    monkeypatch.setattr(server_watch, "PULSE_LIMIT_S", 8 * SHORT_S)
    turns = [await begun(engine, request(f"t{n}", max_tokens=3900)) for n in range(2)]
    fault(server)
    ends = await asyncio.gather(*map(rest, turns), return_exceptions=True)
    assert [type(end) for end in ends] == [EngineDied] * 2
    assert not engine.healthy()
    with pytest.raises(EngineDied, match=reason):
        await run(engine, request())


async def test_turn_of_a_dead_server_is_not_sent_to_it_again(
    server: FakeVllmServer, engine: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the turn waits until the engine knows, because the turn goes on at once."""
    monkeypatch.setattr(server_watch, "PULSE_S", LIMIT_S)
    await asyncio.sleep(2 * SHORT_S)  # the last short pulse
    deltas = await begun(engine, request(max_tokens=3000))
    server.kill()
    with pytest.raises(EngineDied):
        await rest(deltas)
    assert not engine.healthy()


async def test_server_that_sends_tokens_is_alive(
    server: FakeVllmServer, engine: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it gives no other sign of life, as one that drains."""
    monkeypatch.setattr(server_watch, "PULSE_LIMIT_S", 8 * SHORT_S)
    deltas = await begun(engine, request(max_tokens=3900))
    hang(server)
    for _ in range(40):
        server.engine.gate.set()
        await anext(deltas)
        server.engine.gate.clear()
        await asyncio.sleep(SHORT_S / 2)
    assert engine.healthy()
    with pytest.raises(EngineDied, match="does not answer"):
        await rest(deltas)


async def test_slow_prefill_is_not_a_hang_while_the_server_counts_steps(
    server: FakeVllmServer, model: Path
) -> None:
    async with started(server, model, watchdog_s=0.4) as engine:
        server.engine.gate.clear()
        server.steps_per_look = 1.0
        slow = asyncio.create_task(run(engine, request()))
        await asyncio.sleep(1.2)
        assert engine.healthy()
        assert not slow.done()
        server.engine.gate.set()
        assert len(ids_of(await slow)) == 16

        server.engine.gate.clear()
        server.steps_per_look = 0.0
        with pytest.raises(EngineDied, match="no step in"):
            await run(engine, request())
