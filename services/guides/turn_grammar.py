"""Writes the grammar of a whole turn: free reasoning and text, and calls that follow their tools'
schemas."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from msgspec import Struct

from schemas.conversation import OutputFormat, ToolSpec
from services.families import Family
from services.families.grammar.channels import Channels
from services.families.grammar.markup import Markup
from services.families.writing import NAME
from services.guides.calls import CallRules
from services.guides.text import LEAST_MARKER, TextRules, plain_marker
from services.guides.writer import RuleWriter, Unguidable

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
    """The rules that both kinds of families share.

    A subclass has `free` for a turn from its beginning, and `forced` for a turn after a prompt that
    opened its first call.
    """

    def __init__(
        self, form: TurnForm, family: Family, writer: RuleWriter, calls: CallRules
    ) -> None:
        self.form = form
        self.family = family
        self.writer = writer
        self.calls = calls

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
        self.thinks = [
            (plain_marker(opener), plain_marker(closer)) for opener, closer in grammar.think[:1]
        ]
        self.frames = [
            (plain_marker(opener), plain_marker(closer)) for opener, closer in grammar.frames
        ]
        self.framed = grammar.framed

        shapes = [call.shape for call in grammar.calls]
        opening = family.style.call.partition(NAME)[0]
        heads = [shape.head for shape in shapes if opening.startswith(shape.head)]
        trigger = max(heads, key=len, default="")
        self.trigger = writer.whole_tokens(opening, len(trigger))
        self.needs_name = len(trigger.strip()) < LEAST_MARKER
        """Only the name of a tool distinguishes a call from text."""
        bare = [shape for shape in shapes if len(shape.head.strip()) < LEAST_MARKER]
        self.distinct = bool(trigger) and all(shape.line_start for shape in bare)

        openings: Iterable[str] = ()
        if self.needs_name:
            openings = map(calls.before_arguments, form.tools)
        self.prose = TextRules(grammar, writer, openings)

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
        thought = self.rest_of_thought(self.thinks[0][1])
        called = self.call_in_thought()
        return self.writer.choice([f"{thought} {rest}", called + self.more()])

    def more(self) -> str:
        """The rule for the rest of a turn after a call; "" if nothing may follow."""
        if not self.form.parallel:
            return ""
        if self.form.format is None:
            return f" {self.text()}"
        return f" {self.bare_call()}*"

    def call(self, words: str, lines: str) -> str:
        """A call after text: the terminal `words`, or `lines` if calls begin a line; or after
        nothing."""
        if not self.needs_name:
            return f"{self.writer.until(words, self.trigger)} {self.any_call(self.trigger)}"
        calls: list[str] = []
        for tool in self.form.tools:
            opening = self.calls.before_arguments(tool)
            opened = self.writer.until(lines, opening)
            calls.append(f"{opened} {self.calls.call(tool, opening)}")
        return self.writer.choice(calls)

    def called(self) -> str:
        """A call after text, or after nothing."""
        return self.call(self.prose.words, self.prose.lines)

    def bare_call(self) -> str:
        """A call with only blanks before it."""
        return self.writer.rule(self.call(self.blanks, self.blanks))

    def text(self) -> str:
        """Text with calls in it."""
        until = self.writer.until
        choice = self.writer.choice
        words = self.prose.words
        calls = [self.called(), *self.thoughts_before_call()]
        opened = [until(self.blanks, opener) for opener, _ in self.frames]
        closed = [until(words, closer) for _, closer in self.frames]
        other = [*self.thoughts(), *opened, *closed, *self.prose.mentions]
        other += self.prose.tag_mentions(closers=True)
        if self.form.parallel:
            return f"{choice([*calls, *other])}* {words}?"

        end = f"{choice([*calls, words])}?"
        return f"{choice(other)}* {end}" if other else end

    def rest_of_thought(self, closer: str) -> str:
        """Reasoning up to its closer."""
        return f"{self.mentioned()} {self.writer.until(self.prose.words, closer)}"

    def call_in_thought(self) -> str:
        """Reasoning that a call ends."""
        return f"{self.mentioned()} {self.called()}"

    def mentioned(self) -> str:
        """Reasoning up to the last marker that it mentions; "" if it can mention none."""
        mentions = [*self.prose.mentions, *self.prose.tag_mentions(closers=False)]
        return f"{self.writer.choice(mentions)}*" if mentions else ""

    def thoughts(self) -> list[str]:
        """Whole blocks of reasoning."""
        return [
            self.writer.rule(f"{self.opened(opener)} {self.rest_of_thought(closer)}")
            for opener, closer in self.thinks
        ]

    def thoughts_before_call(self) -> list[str]:
        """Blocks of reasoning that a call ends."""
        return [
            self.writer.rule(f"{self.opened(opener)} {self.call_in_thought()}")
            for opener, _ in self.thinks
        ]

    def opened(self, opener: str) -> str:
        """The beginning of a block of reasoning."""
        return self.writer.until(self.blanks, opener)

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
        markers = tuple(dict.fromkeys((*family.markers, *family.stops)))
        self.words = writer.text_without(markers)

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
