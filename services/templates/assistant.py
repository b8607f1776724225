"""Writes a turn of the assistant, an ordered sequence of reasoning, text and calls, in a form that
the template renders.

Most templates read three fields and render them in one order: reasoning, text, calls. A turn in
that order goes into the fields. Any other (reasoning, call, reasoning, call; text after a call;
text beside a call where the template drops it) takes the form of `TemplateTraits.interleaved`:
sorting it into the fields would move reasoning.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from msgspec import Struct

from schemas.conversation import Call, Reasoning, Text
from services.templates.chat_template import ChatTemplate, TemplateMessage
from services.templates.tools import arguments_of
from services.templates.traits import InlineForm, TemplateTraits
from services.templates.wording import JOIN, call_text
from services.tokenization.data_marks import DataMarker

AssistantPart: TypeAlias = Text | Reasoning | Call
WriteCall: TypeAlias = Callable[[str, dict[str, Any]], str]
"""Writes a call, by name and arguments, for templates that render no calls: `Style.write_call`."""

FRAME_USER: TemplateMessage = {"role": "user", "content": "Hello."}


class TurnSegment(Struct):
    """A part of a turn that the three fields can hold."""

    reasoning: str | None = None
    text: str | None = None
    calls: list[Call] = []


def segments(parts: Sequence[AssistantPart]) -> list[TurnSegment]:
    """The turn, cut wherever its order differs from that of the fields. At least one segment."""
    cut: list[TurnSegment] = []
    for part in parts:
        last = cut[-1] if cut else None
        if isinstance(part, Call):
            if last is None:
                cut.append(TurnSegment(calls=[part]))
            else:
                last.calls.append(part)
        elif isinstance(part, Reasoning):
            cut.append(TurnSegment(reasoning=part.text or ""))
        elif last is None or last.calls or last.text is not None:
            cut.append(TurnSegment(text=part.text))
        else:
            last.text = part.text
    return cut or [TurnSegment(text="")]


class _InlineContent:
    """The content of one turn in a template's own markup, which grows piece by piece."""

    def __init__(self, form: InlineForm, first: TurnSegment) -> None:
        """`first`: the turn's first segment. Its reasoning has a field before the content."""
        self.text = ""
        self._form = form
        self._separator = ""
        """The text that the template writes after the last piece."""
        self._ends_in_text = False
        if first.reasoning is not None and first.text is None:
            _, before_text, before_call = form.separators
            self._separator = before_call.removeprefix(before_text)

    def add_reasoning(self, reasoning: str, *, text_follows: bool) -> None:
        """Adds reasoning, which text or a call follows."""
        opening, before_text, before_call = self._form.separators
        if self._ends_in_text and not _ends_line(self.with_separator()):
            self._separator = "\n"  # within a line, the tag would be text
        self._add(opening + reasoning, before_text if text_follows else before_call)

    def add_text(self, text: str) -> None:
        """Adds a text."""
        self._add(text, self._form.text_join)
        self._ends_in_text = True

    def add_calls(self, markup: str) -> None:
        """Adds calls, which the template wrote."""
        self._add(markup, self._form.call_join)

    def with_separator(self) -> str:
        """The text, up to where the next piece begins."""
        return self.text + self._separator

    def _add(self, piece: str, separator: str) -> None:
        self.text += self._separator + piece
        self._separator = separator
        self._ends_in_text = False


class AssistantWriter:
    """Writes assistant turns for one template."""

    def __init__(
        self,
        traits: TemplateTraits,
        template: ChatTemplate,
        *,
        call_ids: Mapping[str, str],
        write_call: WriteCall = call_text,
        marker: DataMarker | None = None,
    ) -> None:
        """`call_ids`: the ids that the template gets, by call id, where they are not the client's.
        `marker`: marks the names, ids and arguments of calls; reasoning and text are marked
        already."""
        self._traits = traits
        self._template = template
        self._call_ids = call_ids
        self._write_call = write_call
        self._marker = marker

    def messages(self, parts: Sequence[AssistantPart]) -> list[TemplateMessage]:
        """The turn as messages: one, unless the template needs it split. `parts` has no two texts
        in a row."""
        traits = self._traits
        if traits.ordered:
            return [{"role": "assistant", "content": [self._part(part) for part in parts]}]
        if traits.reasoning is None:
            has_call = any(isinstance(part, Call) for part in parts)
            parts = without_field(parts, traits.reasoning_tags if has_call else None)

        cut = segments(parts)
        if len(cut) == 1 and self._fits(cut[0]):
            return [self.native(cut[0])]
        if traits.interleaved == "split":
            pieces = chain.from_iterable(map(self._pieces, cut))
            return [self.native(piece) for piece in pieces]
        return [self._single_message(parts, cut)]

    def _single_message(
        self, parts: Sequence[AssistantPart], cut: Sequence[TurnSegment]
    ) -> TemplateMessage:
        """The turn, which the three fields do not hold in its order, as one message. `cut`: its
        segments."""
        traits = self._traits
        if not traits.inline.reasoning and len(cut) > 1:
            first = 1 if isinstance(parts[0], Reasoning) else 0
            cut = segments([*parts[:first], *without_field(parts[first:])])
        if self._must_sort(cut):
            return self.native(_merged(cut))
        return self.inline(cut, tail=traits.inline.tail)

    def _must_sort(self, cut: Sequence[TurnSegment]) -> bool:
        """Whether only the three fields can hold a turn, in their own order."""
        traits = self._traits
        if traits.calls.arguments is None:
            return False
        text_end = any(segment.calls for segment in cut) and not cut[-1].calls
        return traits.interleaved == "drop" or (text_end and not traits.inline.text_end)

    def native(self, segment: TurnSegment) -> TemplateMessage:
        """The segment in the template's own fields."""
        message = self._texts(segment.reasoning, segment.text or "")
        if segment.calls:
            message["tool_calls"] = [self._call(call) for call in segment.calls]
        return message

    def inline(self, cut: Sequence[TurnSegment], *, tail: bool) -> TemplateMessage:
        """The turn as one content in the template's own markup; with `tail`, its last calls in
        their field."""
        traits = self._traits
        last = cut[-1]
        native_calls: list[Call] = []
        if tail and self._fits(TurnSegment(text="", calls=last.calls)):
            native_calls = last.calls

        content = self._inline_content(cut, without_last_calls=bool(native_calls))
        reasoning = cut[0].reasoning or None
        if reasoning is None and traits.reasoning is not None and traits.inline.reasoning:
            reasoning = ""  # the field is set, so that the template keeps the markup
        message = self._texts(reasoning, content)
        if native_calls:
            message["tool_calls"] = [self._call(call) for call in native_calls]
        return message

    def _inline_content(self, cut: Sequence[TurnSegment], *, without_last_calls: bool) -> str:
        """The turn as text in the template's own markup, without the reasoning of its first
        segment, which has a field."""
        first = cut[0]
        last = cut[-1]
        content = _InlineContent(self._traits.inline, first)
        for segment in cut:
            if segment.reasoning is not None and segment is not first:
                content.add_reasoning(segment.reasoning, text_follows=segment.text is not None)
            if segment.text is not None:
                content.add_text(segment.text)
            if segment.calls and not (without_last_calls and segment is last):
                content.add_calls(self.markup(segment.calls))

        if without_last_calls:
            return content.with_separator().removesuffix(self._traits.inline.text_join)
        ends_with_reasoning = last.text is None and not last.calls
        if ends_with_reasoning and last.reasoning is not None:
            return content.with_separator()
        return content.text

    def markup(self, calls: Sequence[Call]) -> str:
        """The calls as this template writes them, cut out of a small rendered conversation."""
        if self._traits.calls.arguments is None:
            return JOIN.join(self._write_call(*self._name_and_arguments(call)) for call in calls)
        if len(calls) > 1 and not self._traits.calls.parallel:
            return self._traits.inline.call_join.join(self.markup([call]) for call in calls)
        before, after = self._traits.inline.frame
        rendered = self._template.render(
            [FRAME_USER, self.native(TurnSegment(calls=list(calls)))], generation=False
        )
        return rendered.removeprefix(before).removesuffix(after).strip()

    def _fits(self, segment: TurnSegment) -> bool:
        traits = self._traits
        if not segment.calls:
            return True
        if traits.calls.arguments is None:
            return False
        if len(segment.calls) > 1 and not traits.calls.parallel:
            return False
        if not segment.text:
            return True
        return traits.calls.with_all if segment.reasoning else traits.calls.with_text

    def _pieces(self, segment: TurnSegment) -> list[TurnSegment]:
        """The segment in pieces that each fit one message.

        Where text and reasoning exclude each other before a call (gpt-oss: "Put the analysis
        message in one or the other"), the text joins the reasoning: both stay before the call, in
        order.
        """
        if self._fits(segment):
            return [segment]
        together = self._traits.calls.parallel and self._fits(TurnSegment(calls=segment.calls))
        calls_of_head = len(segment.calls) if together else 1
        head = TurnSegment(segment.reasoning, segment.text, segment.calls[:calls_of_head])
        rest = [TurnSegment(calls=[call]) for call in segment.calls[calls_of_head:]]

        if self._fits(head):
            return [head, *rest]
        if head.reasoning and head.text and not self._traits.calls.after_all:
            head = TurnSegment(head.reasoning + "\n\n" + head.text, None, head.calls)
        if self._fits(head):
            return [head, *rest]
        return [TurnSegment(head.reasoning, head.text), TurnSegment(calls=head.calls), *rest]

    def _texts(self, reasoning: str | None, text: str) -> TemplateMessage:
        traits = self._traits
        message: TemplateMessage = {"role": "assistant", "content": text}
        if traits.reasoning == "part" and reasoning:
            content: list[dict[str, Any]] = [{"type": "thinking", "thinking": reasoning}]
            if text:
                content.append({"type": "text", "text": text})
            message["content"] = content
            return message
        if traits.content == "parts":
            message["content"] = [{"type": "text", "text": text}]
        if reasoning is not None and traits.reasoning not in (None, "part"):
            message[str(traits.reasoning)] = reasoning
        return message

    def _call(self, call: Call) -> dict[str, Any]:
        name, arguments = self._name_and_arguments(call)
        call_id = self._call_ids.get(call.call_id, call.call_id)
        if self._marker is not None:
            call_id = self._marker.mark(call_id)
        written: Any = arguments
        if self._traits.calls.arguments == "string":
            written = json.dumps(arguments, ensure_ascii=False)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}

    def _name_and_arguments(self, call: Call) -> tuple[str, dict[str, Any]]:
        name = call.rendered_name
        arguments = arguments_of(call)
        if self._marker is None:
            return name, arguments
        return self._marker.mark(name), self._marker.mark_json(arguments)

    def _part(self, part: AssistantPart) -> dict[str, Any]:
        if isinstance(part, Call):
            return {**self._call(part), "type": "tool_call"}
        if isinstance(part, Reasoning):
            return {"type": "reasoning", "text": part.text or ""}
        return {"type": "text", "text": part.text}


def _ends_line(text: str) -> bool:
    return text.rstrip(" \t").endswith("\n")


def _merged(cut: Sequence[TurnSegment]) -> TurnSegment:
    texts = [segment.text for segment in cut if segment.text]
    calls = chain.from_iterable(segment.calls for segment in cut)
    return TurnSegment(cut[0].reasoning, JOIN.join(texts), list(calls))


def without_field(
    parts: Sequence[AssistantPart], tags: tuple[str, str] | None = None
) -> list[AssistantPart]:
    """The turn for a template without a field for reasoning: as text between tags, or left out.
    Adjacent texts become one."""
    visible: list[AssistantPart] = []
    join = ""
    for part in parts:
        if isinstance(part, Call):
            visible.append(part)
            continue
        text = part.text or ""
        is_thought = isinstance(part, Reasoning)
        if is_thought:
            if tags is None:
                continue
            text = tags[0] + text + tags[1]

        last = visible[-1] if visible else None
        if isinstance(last, Text):
            visible[-1] = Text(last.text + join + text)
        else:
            visible.append(Text(text))
        join = "\n\n" if is_thought else JOIN
    return visible
