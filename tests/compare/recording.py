"""Records what a checkout answers over HTTP on loopback."""

import asyncio
from pathlib import Path

import aiohttp

from tests.compare.agents import AGENTS
from tests.compare.checkout import running
from tests.compare.exchange import Answer, Exchange, Request
from tests.compare.sessions import Send, drawn

SESSIONS_AT_ONCE = 12
_APIS = [
    "count_tokens",
    "input_tokens",
    "messages",
    "chat",
    "responses",
    "completions",
    "tokenize",
    "models",
]  # fmt: skip


async def record(tree: Path, seed: int, requests: int) -> list[Exchange]:
    """Sends the requests of a seed; returns them with their answers, in the order in which they were
    drawn. Raises StackFailed if the checkout does not start."""
    sessions = list(drawn(seed, requests))
    done: dict[str, list[Exchange]] = {mark: [] for _, mark, _, _ in sessions}
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
            for label, mark, _, run in todo:
                await run(_sender(http, label, mark, done[mark]))

        for _ in range(SESSIONS_AT_ONCE):
            tasks.create_task(lane())
    return [exchange for some in done.values() for exchange in some]


def _sender(http: aiohttp.ClientSession, label: str, mark: str, done: list[Exchange]) -> Send:
    async def send(request: Request) -> Answer:
        async with http.request(
            request.method, request.path, data=request.body or None, headers=request.headers
        ) as got:
            answer = Answer(got.status, list(got.headers.items()), await got.read())
        api = next((name for name in _APIS if name in request.path), "other")
        exchange = Exchange(
            id=f"{mark}.{len(done)}",
            label=f"{api} {'agent' if label in AGENTS else label}",
            method=request.method,
            path=request.path,
            request=_text(request.body),
            status=answer.status,
            headers=answer.headers,
            answer=_text(answer.body),
        )
        done.append(exchange)
        return answer

    return send


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
