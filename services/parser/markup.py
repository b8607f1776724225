"""Families that mark reasoning and calls inside running text: their grammar, and the machine that reads it.

    reasoning </think> text <call> … </call> text <think> reasoning </think> <call> … </call>

Reasoning opens at a block boundary only: at the start, or with nothing but blanks since the last call or block ended. A
well-formed call ends open reasoning, whose own closer may then still come. A marker that its grammar does not follow is
text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from re import Match
from typing import Protocol, TypeAlias

from services.parser.prose import prose
from services.parser.shapes import Markers, Shape
from services.parser.tape import Reading
from services.parser.turn import Opener, Turn


class Body(Protocol):
    """Reads a call from behind its opening marker to its end, and writes its block."""

    def read(self, turn: Turn, opener: Opener) -> Reading[str | None]:
        """None: done, the tape stands behind the call. A string: it was no call, and this much text has passed."""


@dataclass(frozen=True)
class Call:
    """How a call opens, and what reads it; `identify` splits the opener's `id` into name and call id."""

    shape: Shape
    body: Body
    identify: Callable[[str], tuple[str, str]] | None = None

    def read(self, turn: Turn, match: Match[str]) -> Reading[str | None]:
        """Reads the call behind `match`; see `Body`."""
        groups = match.groupdict()
        name, call_id = groups.get("name"), groups.get("word")
        if self.identify is not None:
            name, call_id = self.identify(groups["id"])
        return (yield from self.body.read(turn, Opener(match[0], self.shape.head, name, call_id)))


@dataclass(frozen=True)
class Think:
    """The markers around reasoning, as shapes."""

    opener: str
    closer: str


class Mark(Enum):
    """Markers that are no calls."""

    THINK = "opens reasoning"
    ANSWER = "closes reasoning"
    FRAME = "opens a text that has markers of its own"
    UNFRAME = "closes it"
    PASS = "means nothing here"
    STOP = "ends the turn"


Meaning: TypeAlias = "Mark | Call"
Sets: TypeAlias = tuple[Markers[Meaning], Markers[Meaning], Markers[Meaning], Markers[Meaning]]


@dataclass(frozen=True, kw_only=True)
class Markup:
    """The grammar.

    `tails` close calls and sections and are passed over at a boundary; `frames` are markers around text; `stops` are
    the model's stop tokens, dropped where nothing follows them.
    """

    think: tuple[Think, ...] = ()
    calls: tuple[Call, ...] = ()
    tails: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    frames: tuple[tuple[str, str], ...] = ()
    framed: bool = False
    """Text closers count without their openers."""
    consumed: str = ""
    """For reasoning that is to stay in the text: the opener that the prompt has taken from it."""

    def __call__(self, turn: Turn) -> Reading[None]:
        """Reads a turn."""
        owed = False
        framed = self.framed
        if turn.reasoning and not self.think:
            turn.reasoning = False
            if self.consumed:
                turn.prose(self.consumed)
        while True:
            sets = self._sets(turn.calls, owed, framed)
            boundary, running = sets[0:2] if turn.reasoning else sets[2:4]
            hit = yield from prose(turn, boundary, running, stop=Mark.STOP, tail=Mark.PASS)
            if hit is None:
                return
            means = hit.means
            if isinstance(means, Call):
                after = yield from means.read(turn, hit.match)
                if turn.tape.final and after is None:
                    return  # the input ended in the call; what is left belongs to it
                if after is not None:
                    turn.prose(after)
                    continue
                owed |= turn.reasoning
                turn.reasoning = False
                continue
            turn.end_prose()
            if means is Mark.THINK:
                turn.reasoning = True
            elif means is Mark.ANSWER:
                turn.reasoning = owed = False
            elif means is Mark.FRAME:
                framed = True
            elif means is Mark.UNFRAME:
                framed = self.framed

    def _sets(self, calls: bool, owed: bool, framed: bool) -> "Sets":
        key = (calls, owed, framed)
        return self._built.get(key) or self._built.setdefault(key, self._build(*key))

    @cached_property
    def _built(self) -> "dict[tuple[bool, bool, bool], Sets]":
        return {}

    def _build(self, calls: bool, owed: bool, framed: bool) -> "Sets":
        """The markers at the boundary of reasoning, in it, at the boundary of text, in it."""
        always: list[tuple[Shape, Meaning]] = [(call.shape, call) for call in self.calls if calls]
        always += [(Shape(stop), Mark.STOP) for stop in self.stops]
        unframe: list[tuple[Shape, Meaning]] = [(Shape(closer), Mark.UNFRAME) for _, closer in self.frames]
        frame: list[tuple[Shape, Meaning]] = [(Shape(opener), Mark.FRAME) for opener, _ in self.frames]
        think: list[tuple[Shape, Meaning]] = [(Shape(pair.opener), Mark.THINK) for pair in self.think]
        answer: list[tuple[Shape, Meaning]] = [(Shape(pair.closer), Mark.ANSWER) for pair in self.think]
        leave = [(shape, Mark.ANSWER) for shape, _ in frame + unframe] if self.framed else []
        tails: list[tuple[Shape, Meaning]] = [(Shape(tail), Mark.PASS) for tail in self.tails]
        again = [(shape, Mark.PASS) for shape, _ in think]
        return (
            Markers([*answer, *again, *leave, *always]),
            Markers([*answer, *leave, *always]),
            Markers([*think, *answer, *frame, *unframe, *always, *tails]),
            Markers([*(answer if owed else ()), *(unframe if framed else ()), *always]),
        )
