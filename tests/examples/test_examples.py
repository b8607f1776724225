"""Runs each file of examples/ as a user does, against a running Turnwire."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.conversation import HostedTool
from services.frontend.hosted.contract import ProviderError
from services.frontend.hosted.provider import HttpProvider
from services.runtime.config.frontend import FrontendConfig
from services.runtime.observability.telemetry import open_log
from services.runtime.observability.tracing import open_tracer
from tests.kit.nats import NatsServer, free_port
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts an example in the environment of a user: an installed Turnwire, any working
    directory."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    """The lines that an example prints to its end, which is a success."""
    try:
        out, err = process.communicate(timeout=2 * LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    return out.splitlines()


def run(name: str, *arguments: str) -> list[str]:
    return finish(start(name, *arguments))


@pytest.fixture(scope="module")
def server(
    nats_binary: str, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """The demo as `turnwire up` starts it: the scripted agent answers."""
    nats = NatsServer(nats_binary, str(tmp_path_factory.mktemp("nats")))
    nats.start()
    stack = Stack(nats, demo_dir, tmp_path_factory.mktemp("stack"))
    try:
        yield stack.start_all(worker={"script_mode": "agent"})
    finally:
        stack.stop()
        nats.kill()


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("messages.py", " output"),
        ("chat.py", " output tokens"),
        ("responses.py", " cached"),
    ],
)
def test_request_of_each_api(server: Stack, name: str, end: str) -> None:
    *text, usage = run(name, server.url)
    assert "".join(text).strip()
    assert usage.endswith(end)


def test_tool_calls(server: Stack) -> None:
    call, *answer = run("tool_calls.py", server.url)
    assert call == f"Bash {{'command': 'pwd'}} -> {str(Path.cwd())!r}"
    assert "".join(answer).strip()


def test_parse_output() -> None:
    printed = "\n".join(run("parse_output.py"))
    kinds = enumerate(("reasoning", "text", "tool_use"))
    starts = [printed.index(f"BlockStart(block={at}, kind='{kind}'") for at, kind in kinds]
    assert starts == sorted(starts)
    assert printed.count("BlockStop(") == 3


def test_tap_bus(server: Stack) -> None:
    tap = start("tap_bus.py", server.nats.url, "2")
    try:
        assert tap.stdout is not None
        assert tap.stdout.readline() == "reading\n"
        run("tool_calls.py", server.url)
        call, *ends = finish(tap)
    finally:
        tap.kill()
    assert " calls Bash " in call
    assert "pwd" in call
    assert [" ends: " in line for line in ends] == [True, True]


def test_web_provider() -> None:
    port = free_port()
    serving = start("web_provider.py", str(ROOT / "docs"), str(port))
    try:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("serving ")
        asyncio.run(search(HttpProvider(f"http://127.0.0.1:{port}/", None, 1 << 20)))
    finally:
        serving.terminate()
        serving.wait()


async def search(provider: HttpProvider) -> None:
    search, fetch = HostedTool("web_search"), HostedTool("web_fetch")
    async with asyncio.timeout(LIMIT_S):
        found = None
        while found is None:
            with contextlib.suppress(ProviderError):
                found = await provider.run(search, "ledger siblings")
            await asyncio.sleep(0.1)  # the port opens after the line that was read
    assert "https://docs.example/ledger.md" in [source.url for source in found]
    (page,) = await provider.run(fetch, "https://docs.example/ledger.md")
    assert page.text.startswith("# ")
    await provider.close()


def test_print_traces() -> None:
    port = free_port()
    process = start("print_traces.py", str(port))
    try:
        config = FrontendConfig(tracing=True, otlp_endpoint=f"http://127.0.0.1:{port}")
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on http://127.0.0.1:{port}\n"
        tracer = open_tracer(config, "frontend", "frontend-1", open_log(config))
        scope = tracer.sample({})
        assert scope is not None
        request = scope.open("POST /v1/messages", 1, {}, server=True)
        request.record(
            "chat", 2_000_000, 3_000_000, {}, error="engine", events=[("refused", 2_500_000, {})]
        )
        request.end(9)
        asyncio.run(tracer.close())
        lines = [process.stdout.readline() for _ in range(4)]
    finally:
        process.kill()
    assert lines[0] == f"trace {request.trace_id}\n"
    shown = sorted(line.split("ms  ")[-1].strip() for line in lines[1:])
    assert shown == [
        "! refused",
        "POST /v1/messages  [turnwire-frontend]",
        "chat  [turnwire-frontend]  ERROR",
    ], lines
