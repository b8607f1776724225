"""Turns as they go over the bus: the prompt that a worker was given, and the tokens that it said."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import nats

from schemas import subjects
from schemas.frames import GenerateRequest, TokenFrame, unpack_ids
from services.cli import bus_view


@dataclass
class Spoken:
    """One turn of one worker."""

    id: str
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    """Without the end token."""
    cached: int | None = None
    stop_id: int | None = None
    reason: str = ""
    """Empty: it has not ended."""
    said_again: int = 0
    """Attempts after the first."""

    @property
    def generated(self) -> int:
        """Tokens that were sampled, the end token among them."""
        return len(self.output) + (self.stop_id is not None)


class BusTurns:
    """Listens from `async with` on."""

    def __init__(self, nats_url: str) -> None:
        self.url = nats_url
        self.turns: dict[str, Spoken] = {}
        """By id, in the order of their requests."""

    async def __aenter__(self) -> "BusTurns":
        self._bus = await nats.connect(self.url)
        for word in ("gen", "tok"):
            await self._bus.subscribe(f"{subjects.PREFIX}.{word}.>", cb=self._take)
        await self._bus.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._bus.close()

    async def ended(self, turn: str, timeout_s: float = 30) -> Spoken:
        """A turn, when all of its tokens went by."""
        async with asyncio.timeout(timeout_s):
            while not self.turns[turn].reason:
                await self._bus.flush()
        return self.turns[turn]

    async def _take(self, message: Any) -> None:
        said = bus_view.decode(message.subject, message.data)
        if isinstance(said, GenerateRequest):
            spoken = self.turns.setdefault(said.turn, Spoken(said.turn))
            spoken.prompt = unpack_ids(said.prompt)
            spoken.said_again = said.attempt - 1
        elif isinstance(said, TokenFrame):
            for entry in said.entries:
                spoken = self.turns.setdefault(entry.turn, Spoken(entry.turn))
                # A stream that is sent again begins where its receiver stands.
                spoken.output[entry.at : entry.at + len(entry.ids)] = entry.ids
                spoken.cached = entry.cached if entry.cached is not None else spoken.cached
                if entry.finish is not None:
                    spoken.reason, spoken.stop_id = entry.finish.reason, entry.finish.stop_id


def departure(earlier: Spoken, later: Spoken) -> str | None:
    """Where the later prompt leaves the earlier one's prompt and output; None: it goes on from all of their tokens."""
    known = earlier.prompt + earlier.output
    at = next((n for n, pair in enumerate(zip(known, later.prompt, strict=False)) if pair[0] != pair[1]), None)
    if at is None and len(later.prompt) >= len(known):
        return None
    at = min(len(known), len(later.prompt)) if at is None else at
    where = "prompt" if at < len(earlier.prompt) else "output"
    return (
        f"{later.id} leaves {earlier.id} at token {at} of {len(earlier.prompt)} + {len(earlier.output)}, in its {where}"
    )


def holds(prompt: list[int], output: list[int]) -> bool:
    """Whether these tokens stand in a prompt, one behind the other."""
    first = output[0]
    return any(token == first and prompt[at : at + len(output)] == output for at, token in enumerate(prompt))
