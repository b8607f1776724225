"""Measures when a call's last token left the engine or the worker: the start of the dispatch lag.

There are two sources, both in the monotonic clock that all processes of a machine share: the marks
that a script player writes (any server with a worker that plays `bench/scripts`), and a tap on
Turnwire's bus.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, TypeAlias

import msgspec
import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from schemas import subjects
from schemas.frames import TokenFrame

Mark: TypeAlias = Literal["body", "close"]
"""Which token: the last one of the call's inner form (`</function>`), after which nothing can
change the call, or the call's closer (`</tool_call>`)."""


class Clock(Protocol):
    """Reports when the tokens that complete a call left the worker."""

    name: str
    marks: tuple[Mark, ...]
    """The tokens for which it has times."""

    def left_at(self, mark: Mark, play_id: str, turn: str) -> int | None:
        """Returns when that token left, in ns; None: unknown.

        `play_id`: the directive's `id`; `turn`: Turnwire's id of the turn, "" if there is none.
        """
        ...


class Marks:
    """The file in which a script player writes `ID NAME NS` just before the next token leaves the
    engine."""

    name = "marks"
    marks: tuple[Mark, ...] = ("body", "close")

    def __init__(self, path: Path) -> None:
        self._path = path

    def left_at(self, mark: Mark, play_id: str, turn: str) -> int | None:
        found = None
        for line in self._path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) == 3 and words[0] == play_id and words[1] == mark:
                found = int(words[2])
        return found


class Tap:
    """Reads the token frames on the bus. Its times are later than the worker's by one hop over the
    bus."""

    name = "bus"
    marks: tuple[Mark, ...] = ("close",)

    def __init__(self, url: str, closer: Sequence[int]) -> None:
        """`closer`: the token ids that end a call."""
        self._url = url
        self._closer = list(closer)
        self._bus: NatsClient
        self._seen: dict[str, list[tuple[int, int]]] = {}
        self._decode = msgspec.json.Decoder(TokenFrame).decode

    async def __aenter__(self) -> "Tap":
        self._bus = await nats.connect(self._url)
        await self._bus.subscribe(f"{subjects.PREFIX}.tok.>", cb=self._frame)
        await self._bus.flush()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._bus.close()

    async def _frame(self, message: Msg) -> None:
        now = time.monotonic_ns()
        for entry in self._decode(message.data).entries:
            tokens = self._seen.setdefault(entry.turn, [])
            tokens += [(token, now) for token in entry.ids[max(0, len(tokens) - entry.at) :]]

    def heard(self, turn: str) -> int:
        """Returns how many tokens of a turn were seen."""
        return len(self._seen.get(turn, []))

    def left_at(self, mark: Mark, play_id: str, turn: str) -> int | None:
        tokens = self._seen.get(turn, [])
        ids, width = [token for token, _ in tokens], len(self._closer)
        for at in range(len(ids) - width + 1):
            if ids[at : at + width] == self._closer:
                return tokens[at + width - 1][1]
        return None
