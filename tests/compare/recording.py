"""Records what a checkout answers over HTTP on loopback."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.stack import own_stack

MODEL = "turnwire-demo"
SESSIONS_AT_ONCE = 12


@dataclass
class Request:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Exchange:
    """A request and its answer. Bodies are text in which bytes that are not UTF-8 are escaped."""

    id: str
    """Mark of the session and number of the request."""
    label: str
    request: str
    status: int
    headers: list[tuple[str, str]]
    answer: str

    @property
    def is_stream(self) -> bool:
        return any(
            name.lower() == "content-type" and "event-stream" in value
            for name, value in self.headers
        )

    @property
    def document(self) -> Any:
        """The JSON document of a success; None if there is none."""
        try:
            return json.loads(self.answer) if self.status == 200 else None
        except ValueError:
            return None


Send = Callable[[Request], Awaitable[Exchange]]
Run = Callable[[Send], Awaitable[None]]
Session = tuple[str, str, Run]
"""Label and mark of a session, and the function that sends its requests."""


@asynccontextmanager
async def running(tree: Path) -> AsyncIterator[str]:
    """Starts the checkout in `tree`, yields its URL and ends it. Raises StackFailed."""
    with tempfile.TemporaryDirectory(prefix="turnwire-compare-") as name:
        options = {
            "engine": "script",
            "script-mode": "request",
            "token-delay-ms": 0,
            "kv-tokens": 200_000_000,
            # whether a turn is in the bucket by the next request depends on time
            "ledger-store-mb": 0,
            "accept-timeout-s": 60,
            "state-dir": Path(name) / "state",
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        async with own_stack(flags, 180.0, tree) as stack:
            yield stack.url


async def record(tree: Path, sessions: list[Session]) -> list[Exchange]:
    """Plays the sessions; returns their requests with the answers, in the order of the sessions.
    Raises StackFailed if the checkout does not start."""
    done: dict[str, list[Exchange]] = {mark: [] for _, mark, _ in sessions}
    todo = iter(sessions)
    async with (
        running(tree) as url,
        aiohttp.ClientSession(
            base_url=url,
            skip_auto_headers=["accept-encoding", "user-agent", "content-type"],
            timeout=aiohttp.ClientTimeout(total=120),
        ) as http,
        asyncio.TaskGroup() as tasks,
    ):

        async def lane() -> None:
            for label, mark, run in todo:
                await run(_sender(http, label, mark, done[mark]))

        for _ in range(SESSIONS_AT_ONCE):
            tasks.create_task(lane())
    return [exchange for some in done.values() for exchange in some]


def _sender(http: aiohttp.ClientSession, label: str, mark: str, done: list[Exchange]) -> Send:
    async def send(request: Request) -> Exchange:
        async with http.request(
            request.method, request.path, data=request.body or None, headers=request.headers
        ) as got:
            answer = await got.read()
        exchange = Exchange(
            f"{mark}.{len(done)}",
            f"{request.path} {label}",
            f"{request.method} {request.path} {_text(request.body)}",
            got.status,
            list(got.headers.items()),
            _text(answer),
        )
        done.append(exchange)
        return exchange

    return send


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
