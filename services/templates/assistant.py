"""Writes a turn of the assistant, an ordered sequence of reasoning, text and calls, in a form that
the template renders.

Most templates read three fields and render them in one order: reasoning, text, calls. A turn in
that order goes into the fields. Any other (reasoning, call, reasoning, call; text after a call;
text beside a call where the template drops it) takes the form of `TemplateTraits.interleaved`:
sorting it into the fields would move reasoning.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from schemas.conversation import Call, Reasoning, Text
from services.templates.chat_template import ChatTemplate, TemplateMessage
from services.templates.tools import arguments_of, tool_name
from services.templates.traits import TemplateTraits
from services.templates.wording import JOIN, call_text
from services.tokenization.data_marks import Marker

AssistantPart: TypeAlias = Text | Reasoning | Call
CallId: TypeAlias = Callable[[Call], str]
"""The id that the template gets for a call."""
WriteCall: TypeAlias = Callable[[str, dict[str, Any]], str]
"""Writes a call, by name and arguments, for templates that render no calls: `Style.write_call`."""

FRAME_USER: TemplateMessage = {"role": "user", "content": "Hello."}


class Segment(Struct):
    """A part of a turn that the three fields can hold."""

    reasoning: str | None = None
    text: str | None = None
    calls: list[Call] = []


def segments(parts: Sequence[AssistantPart]) -> list[Segment]:
    """The turn, cut wherever its order differs from that of the fields. At least one segment."""
    cut: list[Segment] = []
    for part in parts:
        last = cut[-1] if cut else None
        if isinstance(part, Call):
            if last is None:
                cut.append(Segment(calls=[part]))
            else:
                last.calls.append(part)
        elif isinstance(part, Reasoning):
            cut.append(Segment(reasoning=part.text or ""))
        elif last is None or last.calls or last.text is not None:
            cut.append(Segment(text=part.text))
        else:
            last.text = part.text
    return cut or [Segment(text="")]


class AssistantWriter:
    """Writes assistant turns for one template."""

    def __init__(
        self,
        traits: TemplateTraits,
        template: ChatTemplate,
        *,
        call_id: CallId,
        write_call: WriteCall = call_text,
        marker: Marker | None = None,
    ) -> None:
        """`marker`: marks the names, ids and arguments of calls; reasoning and text are marked
        already."""
        self._traits = traits
        self._template = template
        self._call_id = call_id
        self._write_call = write_call
        self._marker = marker

    def messages(self, parts: Sequence[AssistantPart]) -> list[TemplateMessage]:
        """The turn as messages: one, unless the template needs it split. `parts` has no two texts
        in a row."""
        traits = self._traits
        if traits.ordered:
            return [{"role": "assistant", "content": [self._part(part) for part in parts]}]
        if traits.reasoning is None:
            tags = traits.own_tags if any(isinstance(part, Call) for part in parts) else None
            parts = without_field(parts, tags)
        cut = segments(parts)
        if len(cut) == 1 and self._fits(cut[0]):
            return [self.native(cut[0])]
        if traits.interleaved == "split":
            return [self.native(segment) for whole in cut for segment in self._halves(whole)]
        if not traits.inline_reasoning and len(cut) > 1:
            first = 1 if isinstance(parts[0], Reasoning) else 0
            cut = segments([*parts[:first], *without_field(parts[first:])])
        text_end = any(segment.calls for segment in cut) and not cut[-1].calls
        sorts = traits.interleaved == "drop" or (text_end and not traits.inline_text_end)
        if sorts and traits.arguments is not None:
            return [self.native(_merged(cut))]
        return [self.inline(cut, tail=traits.inline_tail)]

    def native(self, segment: Segment) -> TemplateMessage:
        """The segment in the template's own fields."""
        message = self._texts(segment.reasoning, segment.text or "")
        if segment.calls:
            message["tool_calls"] = [self._call(call) for call in segment.calls]
        return message

    def inline(self, cut: Sequence[Segment], *, tail: bool) -> TemplateMessage:
        """The turn as one content in the template's own markup; with `tail`, its last calls in
        their field."""
        traits = self._traits
        last = cut[-1]
        native_calls = last.calls if tail and self._fits(Segment(text="", calls=last.calls)) else []
        opening, before_text, before_call = traits.separators
        content, join = "", ""
        if cut[0].reasoning is not None and cut[0].text is None:
            join = before_call.removeprefix(before_text)
        for index, segment in enumerate(cut):
            if segment.reasoning is not None and index:
                content += join + opening + segment.reasoning
                join = before_text if segment.text is not None else before_call
            if segment.text is not None:
                content += join + segment.text
                join = traits.text_join
            if segment.calls and not (native_calls and segment is last):
                content += join + self.markup(segment.calls)
                join = traits.call_join
        if native_calls:
            content = (content + join).removesuffix(traits.text_join)
        elif last.reasoning is not None and last.text is None and not last.calls:
            content += join
        keeps_markup = traits.reasoning is not None and traits.inline_reasoning
        message = self._texts(cut[0].reasoning or ("" if keeps_markup else None), content)
        if native_calls:
            message["tool_calls"] = [self._call(call) for call in native_calls]
        return message

    def markup(self, calls: Sequence[Call]) -> str:
        """The calls as this template writes them, cut out of a small rendered conversation."""
        if self._traits.arguments is None:
            return JOIN.join(self._write_call(*self._name_and_arguments(call)) for call in calls)
        if len(calls) > 1 and not self._traits.parallel:
            return self._traits.call_join.join(self.markup([call]) for call in calls)
        before, after = self._traits.frame
        rendered = self._template.render(
            [FRAME_USER, self.native(Segment(calls=list(calls)))], generation=False
        )
        return rendered.removeprefix(before).removesuffix(after).strip()

    def _fits(self, segment: Segment) -> bool:
        traits = self._traits
        if not segment.calls:
            return True
        if traits.arguments is None or (len(segment.calls) > 1 and not traits.parallel):
            return False
        return not segment.text or (
            traits.all_with_call if segment.reasoning else traits.text_with_call
        )

    def _halves(self, segment: Segment) -> list[Segment]:
        """The segment in pieces that each fit one message.

        Where text and reasoning exclude each other before a call (gpt-oss: "Put the analysis
        message in one or the other"), the text joins the reasoning: both stay before the call, in
        order.
        """
        if self._fits(segment):
            return [segment]
        first, rest = segment.calls[:1], segment.calls[1:]
        head = Segment(segment.reasoning, segment.text, first)
        if self._traits.parallel and self._fits(Segment(calls=segment.calls)):
            head, rest = Segment(segment.reasoning, segment.text, segment.calls), []
        if (
            not self._fits(head)
            and head.reasoning
            and head.text
            and not self._traits.all_before_call
        ):
            head = Segment(head.reasoning + "\n\n" + head.text, None, head.calls)
        heads = (
            [head]
            if self._fits(head)
            else [Segment(head.reasoning, head.text), Segment(calls=head.calls)]
        )
        return heads + [Segment(calls=[call]) for call in rest]

    def _texts(self, reasoning: str | None, text: str) -> TemplateMessage:
        traits = self._traits
        message: TemplateMessage = {"role": "assistant", "content": text}
        if traits.reasoning == "part" and reasoning:
            shown = [{"type": "text", "text": text}] if text else []
            message["content"] = [{"type": "thinking", "thinking": reasoning}, *shown]
            return message
        if traits.content == "parts":
            message["content"] = [{"type": "text", "text": text}]
        if reasoning is not None and traits.reasoning not in (None, "part"):
            message[str(traits.reasoning)] = reasoning
        return message

    def _call(self, call: Call) -> dict[str, Any]:
        name, arguments = self._name_and_arguments(call)
        written = (
            json.dumps(arguments, ensure_ascii=False)
            if self._traits.arguments == "string"
            else arguments
        )
        call_id = self._call_id(call)
        if self._marker is not None:
            call_id = self._marker.mark(call_id)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}

    def _name_and_arguments(self, call: Call) -> tuple[str, dict[str, Any]]:
        name, arguments, marker = (
            tool_name(call.name, call.namespace),
            arguments_of(call),
            self._marker,
        )
        return (
            (name, arguments)
            if marker is None
            else (marker.mark(name), marker.mark_json(arguments))
        )

    def _part(self, part: AssistantPart) -> dict[str, Any]:
        if isinstance(part, Call):
            return {**self._call(part), "type": "tool_call"}
        if isinstance(part, Reasoning):
            return {"type": "reasoning", "text": part.text or ""}
        return {"type": "text", "text": part.text}


def _merged(cut: Sequence[Segment]) -> Segment:
    texts = [segment.text for segment in cut if segment.text]
    return Segment(
        cut[0].reasoning, JOIN.join(texts), [call for segment in cut for call in segment.calls]
    )


def without_field(
    parts: Sequence[AssistantPart], tags: tuple[str, str] | None = None
) -> list[AssistantPart]:
    """The turn for a template without a field for reasoning: as text between tags, or left out.
    Adjacent texts become one."""
    kept: list[AssistantPart] = []
    join = ""
    for part in parts:
        if isinstance(part, Call):
            kept.append(part)
            continue
        thought = isinstance(part, Reasoning)
        if thought and tags is None:
            continue
        text = (
            f"{tags[0]}{part.text or ''}{tags[1]}"
            if thought and tags is not None
            else part.text or ""
        )
        if kept and isinstance(last := kept[-1], Text):
            kept[-1] = Text(last.text + join + text)
        else:
            kept.append(Text(text))
        join = "\n\n" if thought else JOIN
    return kept
