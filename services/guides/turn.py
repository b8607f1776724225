"""Writes the grammar of a whole turn: free reasoning and text, in which each call is held to its tool."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from schemas.conversation import OutputFormat, ToolSpec
from services.families import Family
from services.families.grammar.channels import Channels
from services.families.grammar.markup import Markup
from services.families.grammar.shapes import Shape
from services.families.writing import NAME, Style
from services.guides.calls import CallRules, Unguidable
from services.guides.writer import RuleWriter

_LEAST_MARKER: Final = 4
"""Characters. Text could not be without shorter ones: calls that begin with a bare `[` or `{`."""
_BLANKS: Final = r"/[ \t\r\n]{1,32}/"


class TurnForm(Struct, frozen=True, kw_only=True):
    """What a turn may be."""

    tools: Sequence[ToolSpec]
    """Those that may be called, under the names and with the schemas that the model sees."""
    format: OutputFormat | None = None
    """The form of a turn without calls."""
    parallel: bool = True
    in_reasoning: bool = False
    """The prompt ends inside an open reasoning block."""
    forced: bool = False
    """The turn begins with a call."""
    prefix: str = ""
    """The end of the prompt that opens the forced call."""


class TurnGrammar(Struct, frozen=True):
    """A grammar, and the promises that it cannot keep, as `PROMISE TOOL`."""

    text: str
    lost: tuple[str, ...] = ()


def turn_grammar(
    form: TurnForm, family: Family, tokens: Mapping[str, int] | None = None, stop_ids: Sequence[int] = ()
) -> TurnGrammar:
    """The grammar of a turn. `tokens`: the tokenizer's added tokens and their ids; `stop_ids` may end the turn.

    Raises Unguidable where the family's calls cannot be distinguished from its text, or have a form of their own.
    """
    writer = RuleWriter(tokens or {})
    calls = CallRules(family, writer, [text for text, token in (tokens or {}).items() if token in stop_ids])
    turn: _Turn
    if isinstance(family.grammar, Channels):
        turn = _Messages(form, family, writer, calls)
    elif isinstance(family.grammar, Markup):
        turn = _Running(form, family, family.grammar, writer, calls)
    else:
        raise Unguidable(f"{family.name} has a grammar of its own")
    body = turn.forced() if form.forced else turn.free()
    stop = f" {writer.token(stop_ids)}?" if stop_ids else ""
    return TurnGrammar("\n".join([f"start: {body}{stop}", *writer.lines, ""]), tuple(calls.lost))


class _Turn(ABC):
    """What both kinds of families share."""

    def __init__(self, form: TurnForm, family: Family, writer: RuleWriter, calls: CallRules) -> None:
        self.form, self.family, self.writer, self.calls = form, family, writer, calls
        self.style: Style = family.style

    def any_call(self, written: str) -> str:
        """A call of any tool, of which `written` is the beginning."""
        fitting = [tool for tool in self.form.tools if self.calls.front(tool).startswith(written)]
        return self.writer.rule(" | ".join(self.calls.call(tool, written) for tool in fitting))

    def answer(self) -> str:
        """The final answer in its form."""
        output = self.form.format
        schema = output.schema if output is not None and output.schema is not None else {"type": "object"}
        return self.calls.schema(schema)

    @abstractmethod
    def forced(self) -> str:
        """A turn whose first call the prompt has opened."""

    @abstractmethod
    def free(self) -> str:
        """A turn from its beginning."""


class _Running(_Turn):
    """Calls and reasoning in running text."""

    def __init__(self, form: TurnForm, family: Family, grammar: Markup, writer: RuleWriter, calls: CallRules) -> None:
        super().__init__(form, family, writer, calls)
        heads = [call.shape.head for call in grammar.calls]
        thinks = [tuple(_plain(marker) for marker in pair) for pair in grammar.think]
        self.frames = [(_plain(opener), _plain(closer)) for opener, closer in grammar.frames]
        self.framed = grammar.framed
        self.thinks = [thinks[0]] if thinks else []
        front = self.style.call.partition(NAME)[0]
        trigger = max((head for head in heads if front.startswith(head)), key=len, default="")
        self.trigger = writer.whole_tokens(front, len(trigger))
        self.distinct = bool(trigger) and all(len(head.strip()) >= _LEAST_MARKER for head in heads)
        marks = (*heads, *(marker for pair in (*thinks, *self.frames) for marker in pair))
        self.marks = tuple(dict.fromkeys(marks))

    def forced(self) -> str:
        first = self.any_call(self.form.prefix)
        if not self.form.parallel or not self.distinct:
            return first
        return f"{first} {self.more()}"

    def more(self) -> str:
        """What may follow a call."""
        if self.form.format is not None:
            return f"{self.bare_call()}*"
        return self.text()

    def free(self) -> str:
        if not self.distinct:
            raise Unguidable(f"the calls of {self.family.name} cannot be distinguished from text")
        rest = self.formed() if self.form.format is not None else self.text()
        if not self.form.in_reasoning or not self.thinks:
            return rest
        return self.reasoning(rest)

    def text(self) -> str:
        """Text with calls in it."""
        writer = self.writer
        text = writer.text_without(self.marks)
        call = f"{writer.until(text, self.trigger)} {self.any_call(self.trigger)}"
        ended = self.thoughts(called=True)
        other = [*self.thoughts(), *self.framing(text)]
        if self.form.parallel:
            return f"{writer.rule(' | '.join([call, *ended, *other]))}* {text}?"
        end = writer.rule(" | ".join([call, *ended, text]))
        return f"{writer.rule(' | '.join(other))}* {end}?" if other else f"{end}?"

    def framing(self, text: str) -> list[str]:
        """The markers around text."""
        blanks = self.writer.terminal(_BLANKS)
        openers = [self.writer.until(blanks, opener) for opener, _ in self.frames]
        return [*openers, *(self.writer.until(text, closer) for _, closer in self.frames)]

    def thoughts(self, *, called: bool = False) -> list[str]:
        """Whole blocks of reasoning; with `called` those that a call ends."""
        writer = self.writer
        blanks, text = writer.terminal(_BLANKS), writer.text_without(self.marks)
        end = f"{writer.until(text, self.trigger)} {self.any_call(self.trigger)}" if called else None
        return [
            writer.rule(f"{writer.until(blanks, opener)} {end or writer.until(text, closer)}")
            for opener, closer in self.thinks
        ]

    def reasoning(self, rest: str) -> str:
        """A turn whose reasoning the prompt has opened."""
        writer = self.writer
        text = writer.text_without(self.marks)
        closed = f"{writer.until(text, self.thinks[0][1])} {rest}"
        called = f"{writer.until(text, self.trigger)} {self.any_call(self.trigger)}"
        more = f" {self.more()}" if self.form.parallel else ""
        return writer.rule(f"{closed} | {called}{more}")

    def bare_call(self) -> str:
        """A call with nothing but blanks in front of it."""
        opener = self.writer.until(self.writer.terminal(_BLANKS), self.trigger)
        return self.writer.rule(f"{opener} {self.any_call(self.trigger)}")

    def formed(self) -> str:
        """Calls, or an answer in its form; reasoning in front of either."""
        writer = self.writer
        blanks = writer.terminal(_BLANKS)
        bare = f"{blanks}? {self.answer()}"
        pairs = [(writer.until(blanks, opener), writer.until(blanks, closer)) for opener, closer in self.frames]
        answers = [bare, *(f"{opener} {bare} {closer}" for opener, closer in pairs)]
        if self.framed:  # the prompt may have opened one
            answers += [f"{bare} {closer}" for _, closer in pairs]
        answer = writer.rule(" | ".join(answers))
        called = writer.rule(" | ".join([self.bare_call(), *self.thoughts(called=True)]))
        more = f" {self.bare_call()}*" if self.form.parallel else ""
        thoughts = self.thoughts()
        before = f"{writer.rule(' | '.join(thoughts))}* " if thoughts else ""
        return f"{before}{writer.rule(f'{answer} | {called}{more}')}"


class _Messages(_Turn):
    """Messages with headers."""

    def __init__(self, form: TurnForm, family: Family, writer: RuleWriter, calls: CallRules) -> None:
        super().__init__(form, family, writer, calls)
        if family.think is None or not self.style.joint:
            raise Unguidable(f"the messages of {family.name} have a form of their own")
        self.marks = tuple(dict.fromkeys((*family.markers, *family.stops)))

    def forced(self) -> str:
        return self.any_call(self.form.prefix)

    def free(self) -> str:
        writer, think = self.writer, self.family.think
        assert think is not None
        text = writer.text_without(self.marks)
        joint = writer.literal(self.style.joint)
        thought = f"{writer.until(text, think[1])} {joint}"
        front, _, back = self.style.text.partition("{text}")
        call = self.any_call("")
        before = [f"{writer.literal(think[0])} {thought}"]
        if self.form.format is not None:
            end = f"{writer.literal(front)} {self.answer()} | {call}"
        else:
            before.append(f"{writer.literal(front)} {writer.until(text, back)} {joint}")
            end = f"{writer.literal(front)} {text}? | {call}"
        start = f"{thought} " if self.form.in_reasoning else ""
        return f"{start}{writer.rule(' | '.join(before))}* {writer.rule(end)}"


def _plain(marker: str) -> str:
    """A marker without its holes."""
    return Shape(marker).text.replace("{ws}", "").replace("{suffix}", "")
