"""Records turns from the bus: the prompt that a worker received and the tokens that it sent."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import nats

from schemas import subjects
from schemas.events import PromptImage
from schemas.frames import TokenFrame
from schemas.requests import GenerateRequest
from schemas.token_ids import unpack_ids
from tests.kit.waiting import LIMIT_S
from turnwire_tools.tap import messages


@dataclass
class DecodedTurn:
    """One turn, as a worker decoded it."""

    id: str
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    """Without the end token, of the newest attempt and of those that it resumes."""
    attempt: int = 1
    images: list[PromptImage] = field(default_factory=list)
    adapter: str = ""
    salt: str | None = None
    cached: int | None = None
    stop_id: int | None = None
    taken: bool = False
    """Its worker has sent something, with the parse context first."""
    reason: str = ""
    """Empty until the end."""

    @property
    def generated(self) -> int:
        """Tokens that were sampled, the end token among them."""
        return len(self.output) + (self.stop_id is not None)


class BusTurns:
    """Records from `async with` on."""

    def __init__(self, nats_url: str) -> None:
        self.url = nats_url
        self.turns: dict[str, DecodedTurn] = {}
        """Id → turn, in the order of their requests."""

    async def __aenter__(self) -> "BusTurns":
        self._bus = await nats.connect(self.url)
        for word in ("gen", "tok"):
            await self._bus.subscribe(f"{subjects.PREFIX}.{word}.>", cb=self._take)
        await self._bus.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._bus.close()

    async def begun(self, number: int) -> list[DecodedTurn]:
        """Waits for the requests of `number` turns, which an answer may overtake; returns all
        turns."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.turns) < number:
                await self._bus.flush()
        return list(self.turns.values())

    async def ended(self, turn: str) -> DecodedTurn:
        """Waits for the end of a turn, which an answer may overtake; returns it."""
        async with asyncio.timeout(LIMIT_S):
            while turn not in self.turns or not self.turns[turn].reason:
                await self._bus.flush()
        return self.turns[turn]

    async def _take(self, message: Any) -> None:
        payload = messages.decode(message.subject, message.data)
        if isinstance(payload, GenerateRequest):
            decoded = self.turns.setdefault(payload.turn, DecodedTurn(payload.turn))
            if payload.attempt > decoded.attempt:
                decoded.attempt = payload.attempt
                decoded.output = unpack_ids(payload.resume)
                decoded.reason, decoded.stop_id = "", None
            decoded.prompt = unpack_ids(payload.prompt)
            decoded.images = payload.images
            decoded.adapter = payload.adapter
            decoded.salt = payload.cache_salt
        elif isinstance(payload, TokenFrame):
            for entry in payload.entries:
                decoded = self.turns.setdefault(entry.turn, DecodedTurn(entry.turn))
                if entry.attempt < decoded.attempt:
                    continue
                decoded.taken = True
                # A stream that is sent again begins at its receiver's position.
                decoded.output[entry.at : entry.at + len(entry.ids)] = entry.ids
                decoded.cached = entry.cached if entry.cached is not None else decoded.cached
                if entry.finish is not None:
                    decoded.reason, decoded.stop_id = entry.finish.reason, entry.finish.stop_id


def prefix_break(earlier: DecodedTurn, later: DecodedTurn) -> str | None:
    """Where the later prompt differs from the earlier prompt and output; None: it begins with all
    of their tokens."""
    known = earlier.prompt + earlier.output
    at = next(
        (n for n, pair in enumerate(zip(known, later.prompt, strict=False)) if pair[0] != pair[1]),
        None,
    )
    if at is None and len(later.prompt) >= len(known):
        return None
    at = min(len(known), len(later.prompt)) if at is None else at
    where = "prompt" if at < len(earlier.prompt) else "output"
    return f"{later.id} differs from {earlier.id} at token {at} of {len(earlier.prompt)} + {len(earlier.output)}, in its {where}"


def contains(prompt: list[int], output: list[int]) -> bool:
    """Whether a prompt contains these tokens as one run."""
    first = output[0]
    return any(
        token == first and prompt[at : at + len(output)] == output
        for at, token in enumerate(prompt)
    )
