"""Families that mark reasoning and calls inside running text: their grammar, and the machine that reads it.

    reasoning </think> text <call> … </call> text <think> reasoning </think> <call> … </call>

Reasoning opens at a block boundary only: at the start, or with nothing but blanks since the last call or block ended. A
well-formed call ends open reasoning. A marker that its grammar does not follow is text.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from re import Match
from typing import Protocol, TypeAlias

from services.parser.shapes import MORE, Cut, Found, Markers, More, Shape
from services.parser.tape import Reading
from services.parser.turn import Turn


class Body(Protocol):
    """Reads a call from behind its opening marker to its end, and writes its block."""

    def read(self, turn: Turn, opener: Match[str], head: str) -> Reading[str | None]:
        """`head` is the literal text that `opener` starts with. Returns None: done, the tape stands behind the call. A string: it was no call, and this much text has passed."""


@dataclass(frozen=True)
class Call:
    """How a call opens, and what reads it."""

    opener: Shape
    body: Body


@dataclass(frozen=True)
class Think:
    """The markers around reasoning."""

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
Hit: TypeAlias = "Found[Meaning] | None"


@dataclass(frozen=True, kw_only=True)
class Markup:
    """The grammar.

    `tails` close calls and sections and are passed over at a boundary; `frames` are markers around text; `stops` are
    the model's stop tokens, dropped where nothing follows them.
    """

    think: Think | None = None
    calls: tuple[Call, ...] = ()
    tails: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    frames: tuple[tuple[str, str], ...] = ()
    framed: bool = False
    """Text closers count without their openers."""

    def __call__(self, turn: Turn) -> Reading[None]:
        """Reads a turn."""
        owed = False
        framed = self.framed
        if turn.reasoning and self.think is None:
            turn.reasoning = False
        while True:
            sets = self._sets(turn.calls, owed, framed)
            hit = yield from self._prose(turn, *(sets[0:2] if turn.reasoning else sets[2:4]))
            if hit is None:
                return
            means = hit.means
            if isinstance(means, Call):
                after = yield from means.body.read(turn, hit.match, means.opener.head)
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

    def _prose(self, turn: Turn, boundary: "Markers[Meaning]", running: "Markers[Meaning]") -> Reading[Hit]:
        """Reads reasoning or text up to the marker that ends it; None at the end of the input."""
        tape = turn.tape
        while True:
            if turn.begun:
                answer = self._run(turn, running)
            else:
                turn.hold((yield from tape.blanks()))
                answer = boundary.at(tape.text, tape.position, tape.final) or None
            if isinstance(answer, Found):
                tape.position = answer.match.end()
                if answer.means is not Mark.STOP:
                    return answer
                turn.hold(answer.match[0])
            elif isinstance(answer, Cut) and (answer.body or not tape.stopped):
                tape.position = len(tape.text)
                return None
            elif answer is MORE:
                yield
            elif tape.position < len(tape.text):
                turn.prose(tape.text[tape.position])
                tape.position += 1
            elif tape.final:
                return None
            else:
                if turn.begun and not turn.holding:
                    tape.trigger, tape.escape = running.trigger, False
                yield
                tape.trigger = None

    def _run(self, turn: Turn, markers: "Markers[Meaning]") -> "Found[Meaning] | Cut | More | None":
        """Passes prose on up to a marker; None if there is none, or only what looked like one, where the tape stands."""
        tape = turn.tape
        text = tape.text
        look = tape.position
        while True:
            at = markers.find(text, look, tape.final)
            stop = len(text) if at < 0 else at
            if stop > tape.position:
                turn.prose(text[tape.position : stop])
                tape.position = stop
            if at < 0:
                return None
            answer = markers.at(text, at, tape.final, turn.line_start)
            if answer is not None:
                return answer
            look = at + 1

    def _sets(self, calls: bool, owed: bool, framed: bool) -> "tuple[Markers[Meaning], ...]":
        key = (calls, owed, framed)
        return self._built.get(key) or self._built.setdefault(key, self._build(*key))

    @cached_property
    def _built(self) -> "dict[tuple[bool, bool, bool], tuple[Markers[Meaning], ...]]":
        return {}

    def _build(self, calls: bool, owed: bool, framed: bool) -> "tuple[Markers[Meaning], ...]":
        """The markers at the boundary of reasoning, in it, at the boundary of text, in it."""
        always: list[tuple[Shape, Meaning]] = [(call.opener, call) for call in self.calls if calls]
        always += [(Shape(stop), Mark.STOP) for stop in self.stops]
        unframe: list[tuple[Shape, Meaning]] = [(Shape(closer), Mark.UNFRAME) for _, closer in self.frames]
        frame: list[tuple[Shape, Meaning]] = [(Shape(opener), Mark.FRAME) for opener, _ in self.frames]
        think: list[tuple[Shape, Meaning]] = []
        answer: list[tuple[Shape, Meaning]] = []
        if self.think is not None:
            think = [(Shape(self.think.opener), Mark.THINK)]
            answer = [(Shape(self.think.closer), Mark.ANSWER)]
        leave = [(shape, Mark.ANSWER) for shape, _ in frame + unframe] if self.framed else []
        tails: list[tuple[Shape, Meaning]] = [(Shape(tail), Mark.PASS) for tail in self.tails]
        again = [(shape, Mark.PASS) for shape, _ in think]
        return (
            Markers([*answer, *again, *leave, *always]),
            Markers([*answer, *leave, *always]),
            Markers([*think, *answer, *frame, *unframe, *always, *tails]),
            Markers([*(answer if owed else ()), *(unframe if framed else ()), *always]),
        )
