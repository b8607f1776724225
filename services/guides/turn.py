"""Writes the grammar of a whole turn: free reasoning and text, and calls that follow their tools'
schemas."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from msgspec import Struct

from schemas.conversation import OutputFormat, ToolSpec
from services.families import Family
from services.families.grammar.channels import Channels
from services.families.grammar.markup import Markup
from services.families.writing import NAME
from services.guides.calls import CallRules, Unguidable
from services.guides.writer import RuleWriter

_LEAST_MARKER: Final = 4
"""Characters. Free text cannot do without shorter markers, such as a bare `[` or `{`."""
_BLANKS: Final = r"/[ \t\r\n]{1,32}/"


class TurnForm(Struct, frozen=True, kw_only=True):
    """The turns that a grammar admits."""

    tools: Sequence[ToolSpec]
    """The tools that may be called, with the names and schemas that the model sees."""
    format: OutputFormat | None = None
    """The format of a turn without calls."""
    parallel: bool = True
    in_reasoning: bool = False
    """The prompt ends inside an open reasoning block."""
    forced: bool = False
    """The turn begins with a call."""
    prefix: str = ""
    """The end of the prompt that opens the forced call."""


def turn_grammar(
    form: TurnForm,
    family: Family,
    tokens: Mapping[str, int] | None = None,
    stop_ids: Sequence[int] = (),
) -> tuple[str, tuple[str, ...]]:
    """The grammar of a turn, and the promises that it cannot keep, as `PROMISE TOOL`. `tokens`: the
    tokenizer's added tokens and their ids; `stop_ids` may end the turn.

    Raises Unguidable where the family's calls cannot be distinguished from its text, or have a form
    of their own.
    """
    writer = RuleWriter(tokens or {})
    calls = CallRules(
        family, writer, [text for text, token in (tokens or {}).items() if token in stop_ids]
    )
    turn: _RunningText | _Messages
    if isinstance(family.grammar, Channels):
        turn = _Messages(form, family, writer, calls)
    elif isinstance(family.grammar, Markup):
        turn = _RunningText(form, family, family.grammar, writer, calls)
    else:
        raise Unguidable(f"{family.name} has a grammar of its own")
    body = turn.forced() if form.forced else turn.free()
    stop = f" {writer.token(stop_ids)}?" if stop_ids else ""
    return "\n".join([f"start: {body}{stop}", *writer.lines, ""]), tuple(calls.lost)


class _Turn:
    """The rules that both kinds of families share. Text and reasoning cannot contain `markers`.

    A subclass has `free` for a turn from its beginning, and `forced` for a turn after a prompt that
    opened its first call.
    """

    markers: tuple[str, ...]

    def __init__(
        self, form: TurnForm, family: Family, writer: RuleWriter, calls: CallRules
    ) -> None:
        self.form, self.family, self.writer, self.calls = form, family, writer, calls

    @cached_property
    def words(self) -> str:
        """Text or reasoning, not empty."""
        return self.writer.text_without(self.markers)

    def any_call(self, written: str) -> str:
        """A call of any tool that begins with `written`."""
        fitting = [
            tool
            for tool in self.form.tools
            if self.calls.before_arguments(tool).startswith(written)
        ]
        return self.writer.choice(self.calls.call(tool, written) for tool in fitting)

    def answer(self) -> str:
        """The final answer in its format."""
        output = self.form.format
        schema = (
            output.schema
            if output is not None and output.schema is not None
            else {"type": "object"}
        )
        return self.calls.schema(schema)


class _RunningText(_Turn):
    """The rules for families with calls and reasoning in running text."""

    def __init__(
        self, form: TurnForm, family: Family, grammar: Markup, writer: RuleWriter, calls: CallRules
    ) -> None:
        super().__init__(form, family, writer, calls)
        heads = [call.shape.head for call in grammar.calls]
        thinks = [(_plain(opener), _plain(closer)) for opener, closer in grammar.think]
        self.frames = [(_plain(opener), _plain(closer)) for opener, closer in grammar.frames]
        self.framed = grammar.framed
        self.thinks = thinks[:1]
        opening = family.style.call.partition(NAME)[0]
        trigger = max((head for head in heads if opening.startswith(head)), key=len, default="")
        self.trigger = writer.whole_tokens(opening, len(trigger))
        self.distinct = bool(trigger) and all(len(head.strip()) >= _LEAST_MARKER for head in heads)
        markers = (*heads, *(marker for pair in (*thinks, *self.frames) for marker in pair))
        self.markers = tuple(dict.fromkeys(markers))

    @cached_property
    def blanks(self) -> str:
        """White space, not empty."""
        return self.writer.terminal(_BLANKS)

    def forced(self) -> str:
        return self.any_call(self.form.prefix) + (self.more() if self.distinct else "")

    def free(self) -> str:
        if not self.distinct:
            raise Unguidable(f"the calls of {self.family.name} cannot be distinguished from text")
        rest = self.text() if self.form.format is None else self.formed()
        if not self.form.in_reasoning or not self.thinks:
            return rest
        closed = f"{self.writer.until(self.words, self.thinks[0][1])} {rest}"
        return self.writer.choice([closed, self.call(self.words) + self.more()])

    def more(self) -> str:
        """What may follow a call; "" if nothing may."""
        if not self.form.parallel:
            return ""
        return f" {self.text()}" if self.form.format is None else f" {self.bare_call()}*"

    def call(self, before: str) -> str:
        """A call after the terminal `before`, or after nothing."""
        return f"{self.writer.until(before, self.trigger)} {self.any_call(self.trigger)}"

    def bare_call(self) -> str:
        """A call with only blanks before it."""
        return self.writer.rule(self.call(self.blanks))

    def text(self) -> str:
        """Text with calls in it."""
        until, words = self.writer.until, self.words
        calls = [self.call(words), *self.thoughts(called=True)]
        framing = [*(until(self.blanks, opener) for opener, _ in self.frames)]
        framing += [until(words, closer) for _, closer in self.frames]
        other = [*self.thoughts(), *framing]
        if self.form.parallel:
            return f"{self.writer.choice([*calls, *other])}* {words}?"
        end = self.writer.choice([*calls, words])
        return f"{self.writer.choice(other)}* {end}?" if other else f"{end}?"

    def thoughts(self, *, called: bool = False) -> list[str]:
        """Whole blocks of reasoning; with `called` those that a call ends."""
        until = self.writer.until
        return [
            self.writer.rule(
                f"{until(self.blanks, opener)} {self.call(self.words) if called else until(self.words, closer)}"
            )
            for opener, closer in self.thinks
        ]

    def formed(self) -> str:
        """Calls, or an answer in its format; reasoning before either."""
        until, choice, blanks = self.writer.until, self.writer.choice, self.blanks
        bare = f"{blanks}? {self.answer()}"
        answers = [bare]
        for opener, closer in self.frames:
            answers.append(f"{until(blanks, opener)} {bare} {until(blanks, closer)}")
            if self.framed:  # the prompt may have opened one
                answers.append(f"{bare} {until(blanks, closer)}")
        called = choice([self.bare_call(), *self.thoughts(called=True)])
        thoughts = self.thoughts()
        before = f"{choice(thoughts)}* " if thoughts else ""
        return before + choice([choice(answers), called + self.more()])


class _Messages(_Turn):
    """The rules for families that write messages with headers."""

    def __init__(
        self, form: TurnForm, family: Family, writer: RuleWriter, calls: CallRules
    ) -> None:
        super().__init__(form, family, writer, calls)
        if family.think is None or not family.style.joint:
            raise Unguidable(f"the messages of {family.name} have a form of their own")
        self.opener, self.closer = family.think
        self.markers = tuple(dict.fromkeys((*family.markers, *family.stops)))

    def forced(self) -> str:
        return self.any_call(self.form.prefix)

    def free(self) -> str:
        writer, style, words = self.writer, self.family.style, self.words
        joint = writer.literal(style.joint)
        thought = f"{writer.until(words, self.closer)} {joint}"
        opener, _, closer = style.text.partition("{text}")
        opened = writer.literal(opener)
        before = [f"{writer.literal(self.opener)} {thought}"]
        if self.form.format is None:
            before.append(f"{opened} {writer.until(words, closer)} {joint}")
        last = f"{words}?" if self.form.format is None else self.answer()
        start = f"{thought} " if self.form.in_reasoning else ""
        return f"{start}{writer.choice(before)}* {writer.choice([f'{opened} {last}', self.any_call('')])}"


def _plain(marker: str) -> str:
    """A marker without its holes."""
    return marker.replace("{ws}", "").replace("{suffix}", "")
