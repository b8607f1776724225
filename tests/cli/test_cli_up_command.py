"""`turnwire up` with real processes and real HTTP: it serves, restarts, drains, and leaves nothing
behind."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.cli.instances import newest_instance
from services.cli.main import main
from tests.kit.stack import MAIN
from tests.kit.waiting import until_gone

START_S = 90.0
"""Generous: six processes start at once."""
BODY = {
    "model": "turnwire-demo",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "Say something."}],
}


@pytest.fixture(scope="session")
def state(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("up") / "state"
    shutil.copytree(demo_dir, directory / "demo-model")
    return directory


class Up:
    """A running `turnwire up`: its output and its children."""

    def __init__(self, process: asyncio.subprocess.Process, ready_file: Path) -> None:
        self.process = process
        self.ready_file = ready_file
        self.lines: list[str] = []
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())
            self._news.set()
        self._news.set()

    async def printed(self, text: str) -> None:
        """Waits for a line with `text`."""
        async with asyncio.timeout(START_S):
            while not any(text in line for line in self.lines):
                assert not self._reader.done(), "\n".join(self.lines)
                self._news.clear()
                await self._news.wait()

    async def ready(self) -> dict[str, Any]:
        await self.printed("is served at")
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found

    def children(self) -> dict[int, str]:
        """Its child processes and their command lines."""
        parent = self.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
        return {pid: command.replace("\0", " ") for pid, command in commands.items()}

    async def end(self, *signals: signal.Signals) -> int:
        for signum in signals:
            self.process.send_signal(signum)
        async with asyncio.timeout(START_S):
            return await self.process.wait()


Start = Callable[..., AbstractAsyncContextManager[Up]]


@pytest.fixture
def up(state: Path, tmp_path: Path) -> Start:
    """Starts `turnwire up` with flags."""

    @asynccontextmanager
    async def start(*argv: str, sigint: signal.Handlers = signal.SIG_DFL) -> AsyncIterator[Up]:
        """`sigint`: always set, because a shell that runs the tests in the background ignores
        SIGINT."""
        ready_file = tmp_path / "ready.json"
        flags = ["--state-dir", str(state), "--ready-file", str(ready_file), "--port", "0"]
        process = await asyncio.create_subprocess_exec(
            *(*MAIN, "up", *flags, *argv),
            stdout=PIPE,
            stderr=STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, sigint),
        )
        try:
            yield Up(process, ready_file)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    return start


async def answer(url: str, *, patient: bool = False) -> str:
    """The text of one turn; `patient`: repeats the request after 503, as every client does."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(START_S):
        while True:
            async with session.post(f"{url}/v1/messages", json=BODY) as response:
                reply = await response.json()
            if not (patient and response.status == 503):
                break
            await asyncio.sleep(0.1)
    assert (response.status, reply.get("stop_reason")) == (200, "end_turn"), reply
    return "".join(block.get("text", "") for block in reply["content"])


async def test_up_serves_restarts_dead_processes_and_drains(up: Start) -> None:
    flags = ("--token-delay-ms", "10", "--metrics-port", "0", "--inspect", "--inspect-port", "0")
    async with up(*flags) as running:
        ready = await running.ready()
        assert ready["pid"] == running.process.pid
        shown = "\n".join(running.lines)
        assert "export ANTHROPIC_BASE_URL=" + ready["url"] in shown
        assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=262144" in shown
        assert await answer(ready["url"])
        found = newest_instance(os.environ)
        assert found is not None
        assert found.url == ready["url"]

        await running.printed("Metrics of all processes:")
        (line,) = [line for line in running.lines if "Metrics of all processes:" in line]
        async with aiohttp.ClientSession() as session, session.get(line.split()[-1]) as response:
            text = await response.text()
        metrics = {metric.name: metric for metric in text_string_to_metric_families(text)}
        processes = {"frontend-1", "preprocessor-1", "worker-1", "parser-1"}
        for name in ("up", "turnwire_bus_connected"):
            assert {sample.labels["process"] for sample in metrics[name].samples} == processes, name
            assert {sample.value for sample in metrics[name].samples} == {1.0}, name

        await running.printed("See the turns in a browser:")
        (line,) = [line for line in running.lines if "See the turns in a browser:" in line]
        page = f"{line.split()[-1]}api/overview?minutes=0"
        async with aiohttp.ClientSession() as session, session.get(page) as response:
            overview = (await response.json())["overview"]
        assert overview["total"]["turns"] == 1  # the first one, right after the start

        (worker,) = (pid for pid, command in running.children().items() if " worker " in command)
        os.kill(worker, signal.SIGKILL)
        await running.printed("worker-1 ended (killed by SIGKILL); starting it again in 0.5 s")
        assert await answer(ready["url"], patient=True)

        # A turn in progress finishes after Ctrl-C, then everything ends.
        pids = [*running.children()]
        streaming = {**BODY, "stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{ready['url']}/v1/messages", json=streaming) as turn,
        ):
            assert b"message_start" in await turn.content.readuntil(b"\n\n")
            running.process.send_signal(signal.SIGINT)
            assert b"event: message_stop" in await turn.content.read()
        assert await running.end() == 0
        await until_gone(*pids)
        assert not running.ready_file.exists()
        assert newest_instance(os.environ) is None


@pytest.mark.slow
async def test_up_sends_no_request_without_a_key_where_there_are_keys(
    up: Start, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"a:{'0' * 64}\n")
    async with up("--api-keys-file", str(keys)) as running:
        await running.ready()
        assert await running.end(signal.SIGINT) == 0
    assert not [line for line in running.lines if "no_key" in line]


async def test_ctrl_c_while_it_starts(up: Start) -> None:
    async with up() as running:
        await running.printed("starting: ")
        assert await running.end(signal.SIGINT) == 130
        assert "Traceback" not in "\n".join(running.lines)


async def test_what_up_cannot_use_is_one_line(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["up", "--state-dir", str(state), "--nats-url", "nats://127.0.0.1:1", "--port", "0"]
    assert await asyncio.to_thread(main, argv) == 1
    reason = "turnwire up: no NATS server at nats://127.0.0.1:1 (--nats-url)"
    assert capsys.readouterr().err.startswith(reason)


@pytest.mark.slow
async def test_ctrl_c_ends_the_search_for_the_model(
    up: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the background, where shells have SIGINT ignored."""
    asked = asyncio.Event()  # the hub never answers
    hub = await asyncio.start_server(lambda _reader, _writer: asked.set(), "127.0.0.1", 0)
    monkeypatch.setenv("HF_ENDPOINT", "http://{}:{}".format(*hub.sockets[0].getsockname()))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "600")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    async with up("--model", "acme/coder", sigint=signal.SIG_IGN) as running:
        async with asyncio.timeout(START_S):
            await asked.wait()
        assert await running.end(signal.SIGINT) == 130
        assert "Traceback" not in "\n".join(running.lines)
    hub.close()
