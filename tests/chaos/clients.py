"""Clients: each sends one request and keeps every byte of the answer with its time; broken and
refused ones try again."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.chaos.apis import request
from tests.chaos.judge import Attempt, Judgement, Wanted
from tests.kit.stack import MODEL
from turnwire_tools.clients.apis import CLIENTS

JSON = {"content-type": "application/json"}
_ANSWER_ID = re.compile(rb'"(?:msg_|resp_|chatcmpl-)([0-9a-f]{24})"')
AGAIN_S = 0.5
"""Between a broken or refused connection and the next attempt."""


@dataclass
class Stream:
    """One request of a trial."""

    tag: str
    wanted: Wanted
    frontend: int
    """The number of the frontend that it is sent to first."""
    new: bool = False
    """Whether it is sent during a fault or after it."""
    rollout: str = ""
    """The rollout with this turn; "": none."""
    turns: list[str] = field(default_factory=list)
    """The turn of each attempt that was answered; "": it has no answer."""
    attempts: list[Attempt] = field(default_factory=list)
    judgement: Judgement | None = None
    """Once it is certain; the attempts are dropped then."""

    @property
    def begun(self) -> bool:
        """Whether the first bytes of an answer have come."""
        return self.judgement is not None or any(attempt.chunks for attempt in self.attempts)


async def run_stream(
    http: aiohttp.ClientSession, urls: Callable[[], Sequence[str]], stream: Stream
) -> None:
    """Sends a request until it is answered with 200, or with an error that is final. It is
    cancelled when the limit is over.

    As behind a load balancer, an attempt after a broken one goes to the next frontend.
    """
    wanted = stream.wanted
    body = request(wanted.api, MODEL, wanted.script, stream=wanted.stream)
    while True:
        known = urls()
        base = known[(stream.frontend + len(stream.attempts)) % len(known)]
        prefix = f"/rollouts/{stream.rollout}" if stream.rollout else ""
        url = base + prefix + CLIENTS[wanted.api].path
        attempt = Attempt()
        stream.attempts.append(attempt)
        try:
            await _send(http, url, body, attempt)
        finally:
            stream.turns.append(turn_of(attempt.data))
        if attempt.broken:
            await asyncio.sleep(AGAIN_S)
        elif attempt.status == 503 and attempt.retry_after.isdigit():
            await asyncio.sleep(int(attempt.retry_after))
        else:
            return


def turn_of(answer: bytes) -> str:
    """The turn of an answer; "" where it has not begun."""
    match = _ANSWER_ID.search(answer)
    return match[1].decode() if match else ""


async def _send(http: aiohttp.ClientSession, url: str, body: bytes, attempt: Attempt) -> None:
    try:
        async with http.post(url, data=body, headers=JSON) as response:
            attempt.status = response.status
            attempt.retry_after = response.headers.get("retry-after", "")
            async for chunk in response.content.iter_any():
                attempt.chunks.append((time.monotonic(), chunk))
    except (aiohttp.ClientError, OSError) as error:
        attempt.broken = type(error).__name__
    except asyncio.CancelledError:
        attempt.late, attempt.broken = True, "no end"
        raise
