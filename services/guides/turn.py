"""Writes the grammar of a whole turn: free reasoning and text, and calls that follow their tools'
schemas."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Final

from msgspec import Struct

from schemas.conversation import OutputFormat, ToolSpec
from services.families import Family
from services.families.grammar.channels import Channels
from services.families.grammar.markup import Markup
from services.families.writing import NAME
from services.guides.calls import CallRules
from services.guides.writer import RuleWriter, Unguidable

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
    added_tokens = tokens or {}
    stops = [text for text, token in added_tokens.items() if token in stop_ids]
    writer = RuleWriter(added_tokens)
    calls = CallRules(family, writer, stops)
    turn = _turn(form, family, writer, calls)

    body = turn.forced() if form.forced else turn.free()
    if stop_ids:
        body += f" {writer.token(stop_ids)}?"
    grammar = "\n".join([f"start: {body}", *writer.lines, ""])
    return grammar, tuple(calls.lost)


def _turn(
    form: TurnForm, family: Family, writer: RuleWriter, calls: CallRules
) -> "_RunningText | _Messages":
    if isinstance(family.grammar, Channels):
        return _Messages(form, family, writer, calls)
    if isinstance(family.grammar, Markup):
        return _RunningText(form, family, family.grammar, writer, calls)
    raise Unguidable(f"{family.name} has a grammar of its own")


class _Turn:
    """The rules that both kinds of families share. Text and reasoning cannot contain `markers`.

    A subclass has `free` for a turn from its beginning, and `forced` for a turn after a prompt that
    opened its first call.
    """

    markers: tuple[str, ...]

    def __init__(
        self, form: TurnForm, family: Family, writer: RuleWriter, calls: CallRules
    ) -> None:
        self.form = form
        self.family = family
        self.writer = writer
        self.calls = calls

    @cached_property
    def words(self) -> str:
        """Text or reasoning, not empty."""
        return self.writer.text_without(self.markers)

    def any_call(self, written: str) -> str:
        """A call of any tool that begins with `written`."""
        calls = [
            self.calls.call(tool, written)
            for tool in self.form.tools
            if self.calls.before_arguments(tool).startswith(written)
        ]
        return self.writer.choice(calls)

    def answer(self) -> str:
        """The final answer in its format."""
        output = self.form.format
        if output is None or output.schema is None:
            return self.writer.schema({"type": "object"})
        return self.writer.schema(output.schema)


class _RunningText(_Turn):
    """The rules for families with calls and reasoning in running text."""

    def __init__(
        self, form: TurnForm, family: Family, grammar: Markup, writer: RuleWriter, calls: CallRules
    ) -> None:
        super().__init__(form, family, writer, calls)
        thinks = [(_plain(opener), _plain(closer)) for opener, closer in grammar.think]
        self.thinks = thinks[:1]
        self.frames = [(_plain(opener), _plain(closer)) for opener, closer in grammar.frames]
        self.framed = grammar.framed

        heads = [call.shape.head for call in grammar.calls]
        opening = family.style.call.partition(NAME)[0]
        trigger = max(filter(opening.startswith, heads), key=len, default="")
        self.trigger = writer.whole_tokens(opening, len(trigger))
        shortest = min((len(head.strip()) for head in heads), default=0)
        self.distinct = bool(trigger) and shortest >= _LEAST_MARKER

        markers = [*heads, *chain.from_iterable([*thinks, *self.frames])]
        self.markers = tuple(dict.fromkeys(markers))

    @cached_property
    def blanks(self) -> str:
        """White space, not empty."""
        return self.writer.terminal(_BLANKS)

    def forced(self) -> str:
        call = self.any_call(self.form.prefix)
        if self.distinct:
            call += self.more()
        return call

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
        if self.form.format is None:
            return f" {self.text()}"
        return f" {self.bare_call()}*"

    def call(self, before: str) -> str:
        """A call after the terminal `before`, or after nothing."""
        return f"{self.writer.until(before, self.trigger)} {self.any_call(self.trigger)}"

    def bare_call(self) -> str:
        """A call with only blanks before it."""
        return self.writer.rule(self.call(self.blanks))

    def text(self) -> str:
        """Text with calls in it."""
        until = self.writer.until
        choice = self.writer.choice
        words = self.words
        calls = [self.call(words), *self.thoughts_before_call()]
        opened = [until(self.blanks, opener) for opener, _ in self.frames]
        closed = [until(words, closer) for _, closer in self.frames]
        other = [*self.thoughts(), *opened, *closed]
        if self.form.parallel:
            return f"{choice([*calls, *other])}* {words}?"

        end = f"{choice([*calls, words])}?"
        return f"{choice(other)}* {end}" if other else end

    def thoughts(self) -> list[str]:
        """Whole blocks of reasoning."""
        until = self.writer.until
        return [
            self.writer.rule(f"{until(self.blanks, opener)} {until(self.words, closer)}")
            for opener, closer in self.thinks
        ]

    def thoughts_before_call(self) -> list[str]:
        """Blocks of reasoning that a call ends."""
        return [
            self.writer.rule(f"{self.writer.until(self.blanks, opener)} {self.call(self.words)}")
            for opener, _ in self.thinks
        ]

    def formed(self) -> str:
        """Calls, or an answer in its format; reasoning before either."""
        until = self.writer.until
        choice = self.writer.choice
        blanks = self.blanks
        bare = f"{blanks}? {self.answer()}"
        answers = [bare]
        for opener, closer in self.frames:
            answers.append(f"{until(blanks, opener)} {bare} {until(blanks, closer)}")
            if self.framed:  # the prompt may have opened one
                answers.append(f"{bare} {until(blanks, closer)}")

        called = choice([self.bare_call(), *self.thoughts_before_call()])
        thoughts = self.thoughts()
        turn = ""
        if thoughts:
            turn = f"{choice(thoughts)}* "
        return turn + choice([choice(answers), called + self.more()])


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
        writer = self.writer
        words = self.words
        joint = writer.literal(self.family.style.joint)
        rest_of_thought = f"{writer.until(words, self.closer)} {joint}"
        thought = f"{writer.literal(self.opener)} {rest_of_thought}"
        opener, _, closer = self.family.style.text.partition("{text}")
        opened = writer.literal(opener)
        if self.form.format is None:
            text = f"{opened} {writer.until(words, closer)} {joint}"
            before = [thought, text]
            last = f"{opened} {words}?"
        else:
            before = [thought]
            last = f"{opened} {self.answer()}"

        messages = writer.choice(before)
        end = writer.choice([last, self.any_call("")])
        turn = f"{messages}* {end}"
        if self.form.in_reasoning:
            turn = f"{rest_of_thought} {turn}"
        return turn


def _plain(marker: str) -> str:
    """A marker without its holes."""
    return marker.replace("{ws}", "").replace("{suffix}", "")
