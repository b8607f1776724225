"""Finds the traits of a chat template by rendering small conversations in its possible forms.

Each trait is the first candidate with which every part of the conversation is rendered once and in
order.
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from schemas.conversation import (
    EFFORTS,
    Call,
    Conversation,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    ToolSpec,
)
from schemas.errors import Invalid
from services.families import Family
from services.templates.assistant import FRAME_USER, AssistantPart, AssistantWriter, segments
from services.templates.chat_template import ChatTemplate, TemplateMessage, Tool
from services.templates.messages import adapt, render_messages
from services.templates.thinking import EFFORT_VARIABLES, KEEP_HISTORY, SWITCHES
from services.templates.tools import tool_definition
from services.templates.traits import TemplateTraits

_SYSTEM, _SYSTEM2, _SYSTEM3 = (f"zqsystem{n}" for n in (1, 2, 3))
_USER, _USER2 = (f"zquser{n}" for n in (1, 2))
_THOUGHT, _THOUGHT2 = (f"zqthought{n}" for n in (1, 2))
_ANSWER, _ANSWER2 = (f"zqsaid{n}" for n in (1, 2))
_ARGUMENT, _ARGUMENT2 = (f"zqargument{n}" for n in (1, 2))
_RESULT, _RESULT2 = (f"zqresult{n}" for n in (1, 2))
_ID, _ID2 = (f"toolu_zqid{n}" for n in (1, 2))
_SHORT_IDS = {_ID: "000000001", _ID2: "000000002"}
_TOOL = tool_definition(
    ToolSpec(
        "zqtool", "zqdescription", {"type": "object", "properties": {"city": {"type": "string"}}}
    )
)

_CALL = Call(_ID, "zqtool", f'{{"city": "{_ARGUMENT}"}}')
_CALL2 = Call(_ID2, "zqtool", f'{{"city": "{_ARGUMENT2}"}}')
_QUESTION = Message("user", [Text(_USER)])
_RESULTS = Message("tool", [Result(_ID, [Text(_RESULT)])])
_RESULTS2 = Message("tool", [Result(_ID, [Text(_RESULT)]), Result(_ID2, [Text(_RESULT2)])])
_R1, _R2, _T1, _T2 = Reasoning(_THOUGHT), Reasoning(_THOUGHT2), Text(_ANSWER), Text(_ANSWER2)
_ARGUMENTS = {_ID: _ARGUMENT, _ID2: _ARGUMENT2}
_TAGGED_TURNS: tuple[list[Part], ...] = ([_R1, _CALL], [_R1, _T1, _CALL, _R2, _CALL2])


def probe(template: ChatTemplate) -> TemplateTraits:
    """The traits of a template. Never raises: a part that no form renders gets the simplest one."""
    return _Probe(template).traits()


def image_frame(template: ChatTemplate, placeholder: str) -> tuple[str, str] | None:
    """`TemplateTraits.image`, for a model with this placeholder; None where the template renders no
    image.

    A template may move images before the texts of their message (LLaVA): they stay in their place
    here.
    """
    content = [{"type": "text", "text": _USER}, {"type": "image"}, {"type": "text", "text": _USER2}]
    try:
        text = template.render([{"role": "user", "content": content}], tools=[])
    except Invalid:
        return None
    before, found, after = text.partition(placeholder)
    if not found or _USER2 not in text:
        return None
    opening = before.rpartition(_USER)[2] if _USER in before else ""
    return opening, after.partition(_USER2 if _USER in before else _USER)[0]


def own_tags(
    template: ChatTemplate, traits: TemplateTraits, family: Family
) -> tuple[str, str] | None:
    """The tags in which the family's models write reasoning, for a template that reads no reasoning
    field.

    Many templates of reasoning models have no such field (QwQ, R1's distillates, a model tuned on
    another's template), and reasoning that explains a call belongs before that call. None where the
    template reads reasoning, the family writes none, or the template changes the tags: some cut off
    what stands before a closing tag.
    """
    if traits.reasoning is not None or traits.ordered or family.think is None:
        return None
    tags = (f"{family.think[0]}\n", f"\n{family.think[1]}")
    traits = replace(traits, own_tags=tags)
    return (
        tags if all(_keeps_tags(template, traits, family, turn) for turn in _TAGGED_TURNS) else None
    )


def _keeps_tags(
    template: ChatTemplate, traits: TemplateTraits, family: Family, turn: list[Part]
) -> bool:
    results: list[Part] = [
        Result(part.call_id, [Text(_RESULT)]) for part in turn if isinstance(part, Call)
    ]
    messages = [_QUESTION, Message("assistant", turn), Message("tool", results)]
    text = render_messages(messages, traits, template, write_call=family.style.write_call)
    opening, closing = traits.own_tags or ("", "")
    words = [
        _ARGUMENTS[part.call_id]
        if isinstance(part, Call)
        else f"{opening}{part.text}{closing}"
        if isinstance(part, Reasoning)
        else _ANSWER
        for part in turn
    ]
    return _in_order(text, words)


def _turn(*parts: Part) -> Message:
    return Message("assistant", list(parts))


class _Probe:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        names = template.variables
        self._thinking: dict[str, Any] = {
            name: value for name, value in KEEP_HISTORY.items() if name in names
        }
        self._thinking |= dict.fromkeys((name for name in SWITCHES if name in names), True)
        if "thinking_mode" in names:
            self._thinking["thinking_mode"] = "enabled"

    def traits(self) -> TemplateTraits:
        traits = TemplateTraits(variables=self._template.variables)
        for find in (
            self._content,
            self._ordered,
            self._calls,
            self._reasoning,
            self._system,
            self._sequences,
            self._frame,
            self._interleaved,
            self._inputs,
        ):
            traits = find(traits)
        return traits

    def _content(self, traits: TemplateTraits) -> TemplateTraits:
        candidates = [replace(traits, content="text"), replace(traits, content="parts")]
        return self._first(candidates, [_QUESTION], [_USER]) or traits

    def _ordered(self, traits: TemplateTraits) -> TemplateTraits:
        ordered = replace(traits, ordered=True)
        messages = [_QUESTION, _turn(_R1, _CALL, _R2, _CALL2, _T2), _RESULTS2]
        text = self._render(ordered, messages)
        words = [_THOUGHT, _ARGUMENT, _THOUGHT2, _ARGUMENT2, _ANSWER2, _RESULT, _RESULT2]
        return ordered if _in_order(text, words) else traits

    def _calls(self, traits: TemplateTraits) -> TemplateTraits:
        messages, words = [_QUESTION, _turn(_CALL), _RESULTS], [_ARGUMENT, _RESULT]
        candidates = [
            replace(traits, arguments=arguments, call_ids=ids, tool_name=name, tool_role=role)
            for role in (True, False)
            for arguments in ("object", "string", None)
            for ids in ("client", "short")
            for name in (True, False)
        ]
        found = self._first(candidates, messages, words) or replace(
            traits, arguments=None, tool_role=False
        )
        unnamed = self._render(replace(found, tool_name=False), messages)
        if unnamed and unnamed != self._render(found, messages):
            found = replace(found, tool_name=False)
        shown = self._render(found, messages)
        names_by_id = "functions." in self._template.source or _CALL.name not in shown
        if _ID in shown and found.call_ids == "client" and names_by_id:
            found = replace(found, call_ids="counted")
        return found

    def _reasoning(self, traits: TemplateTraits) -> TemplateTraits:
        fields = ("reasoning_content", "reasoning", "thinking", "part")
        candidates = [replace(traits, reasoning=field) for field in fields]
        if traits.arguments is not None:
            found = self._first(
                candidates, [_QUESTION, _turn(_R1, _CALL), _RESULTS], [_THOUGHT, _ARGUMENT]
            )
            if found is not None:
                return found
        return (
            self._first(
                candidates, [_QUESTION, _turn(_R1, _T1)], [_THOUGHT, _ANSWER], generation=False
            )
            or traits
        )

    def _system(self, traits: TemplateTraits) -> TemplateTraits:
        instruction = [Message("system", [Text(text)]) for text in (_SYSTEM, _SYSTEM2, _SYSTEM3)]
        messages = [
            instruction[0],
            _QUESTION,
            instruction[1],
            _turn(_CALL),
            _RESULTS,
            instruction[2],
        ]
        words = [_SYSTEM, _USER, _SYSTEM2, _ARGUMENT, _RESULT, _SYSTEM3]
        if self._shows(replace(traits, system="anywhere"), messages, words):
            return replace(traits, system="anywhere")
        candidates = [replace(traits, system="first"), replace(traits, system="none")]
        return (
            self._first(candidates, [instruction[0], _QUESTION], [_SYSTEM, _USER]) or candidates[-1]
        )

    def _sequences(self, traits: TemplateTraits) -> TemplateTraits:
        """Which messages may follow each other, and which parts may share a message."""
        after = Message("user", [Text(_USER2)])
        loop = [_QUESTION, _turn(_CALL), _RESULTS, after]
        traits = replace(
            traits,
            adjacent_users=self._shows(traits, [_QUESTION, after], [_USER, _USER2]),
            user_after_tool=self._shows(traits, loop, [_USER, _ARGUMENT, _RESULT, _USER2]),
        )
        if traits.arguments is None:
            return replace(traits, parallel=False, text_with_call=False, all_with_call=False)
        both = [_QUESTION, _turn(_CALL, _CALL2), _RESULTS2]
        return replace(
            traits,
            parallel=self._shows(traits, both, [_ARGUMENT, _ARGUMENT2, _RESULT, _RESULT2]),
            text_with_call=self._shows(
                traits, [_QUESTION, _turn(_T1, _CALL), _RESULTS], [_ANSWER, _ARGUMENT]
            ),
            all_with_call=traits.reasoning is None
            or self._shows(
                traits,
                [_QUESTION, _turn(_R1, _T1, _CALL), _RESULTS],
                [_THOUGHT, _ANSWER, _ARGUMENT],
            ),
            all_before_call=traits.reasoning is None
            or self._renders(
                replace(traits, interleaved="split", all_with_call=False), [_R1, _T1, _CALL]
            ),
        )

    def _frame(self, traits: TemplateTraits) -> TemplateTraits:
        """The text around an assistant's text, reasoning and calls."""
        plain = replace(traits, ordered=False)
        before, _, after = self._render_frame(plain, [_T1]).partition(_ANSWER)
        plain = replace(plain, frame=(before, after), closing=after)
        if traits.reasoning is not None:
            text = self._render(plain, [_QUESTION, _turn(_R1, _T1)], generation=False)
            if _in_order(text, [_THOUGHT, _ANSWER]):
                opening, _, rest = text.partition(_THOUGHT)
                opening = opening[max(opening.rfind("<"), opening.rfind("["), 0) :]
                before_text = rest.partition(_ANSWER)[0]
                plain = replace(plain, separators=(opening, before_text, before_text))
        if traits.arguments is not None:
            one, two = self._markup(plain, _CALL), self._markup(plain, _CALL2)
            beside = (
                self._render_frame(plain, [_T1, _CALL]).partition(_ANSWER)[2]
                if traits.text_with_call
                else ""
            )
            pair = self._markup(plain, _CALL, _CALL2) if traits.parallel else ""
            text_join, shown, _ = beside.partition(one)
            text_join = text_join if shown and not text_join.strip() else plain.text_join
            call_join = pair.removeprefix(one).removesuffix(two)
            plain = replace(
                plain,
                text_join=text_join,
                call_join=call_join if not call_join.strip() else text_join,
            )
            thought = self._render(
                plain, [_QUESTION, _turn(_R1, _CALL)], generation=False
            ).partition(_THOUGHT)[2]
            before_call, shown, _ = thought.partition(one)
            if shown and plain.separators[1].strip() == before_call.strip():
                plain = replace(plain, separators=(*plain.separators[:2], before_call))
        return replace(plain, ordered=traits.ordered)

    def _interleaved(self, traits: TemplateTraits) -> TemplateTraits:
        """The form of a turn that continues after a call."""
        if traits.ordered:
            return traits
        thinks = traits.reasoning is not None
        for keeps in (True, False) if thinks else (False,):
            split = replace(traits, interleaved="split")
            if thinks and not keeps and self._renders(split, [_R1, _CALL, _R2, _CALL2]):
                return split
            for tail in (True, False):
                inline = replace(
                    traits, interleaved="inline", inline_reasoning=keeps, inline_tail=tail
                )
                if self._inlines(inline):
                    messages = [_QUESTION, _turn(_CALL, _T2), _RESULTS, _turn(_T1)]
                    ends = self._render(inline, messages) != ""
                    return replace(inline, inline_text_end=ends or traits.arguments is None)
        if self._renders(split, [_T1, _CALL, _T2, _CALL2]):
            return split
        return replace(traits, interleaved="drop")

    def _inlines(self, traits: TemplateTraits) -> bool:
        """Whether content in the template's own markup is rendered as the template writes the
        fields."""
        forms = self._forms(traits)
        whole = segments([_R1, _CALL] if traits.reasoning is not None else [_CALL])
        if traits.arguments is not None:
            native = self._try([FRAME_USER, forms.native(whole[0])], generation=False)
            inline = self._try([FRAME_USER, forms.inline(whole, tail=False)], generation=False)
            if not native or "".join(native.split()) != "".join(inline.split()):
                return False
        later = _R2 if traits.inline_reasoning else _T2
        middle = (
            traits.separators[0] + _THOUGHT2 + traits.separators[2]
            if later is _R2
            else _ANSWER2 + traits.text_join
        )
        expected = (
            self._markup(traits, _CALL) + traits.call_join + middle + self._markup(traits, _CALL2)
        )
        starts: list[list[Part]] = (
            [[_T1], [_R1, _T1], [_R1]] if traits.reasoning is not None else [[_T1], []]
        )
        return all(
            expected
            in self._render(traits, [_QUESTION, _turn(*start, _CALL, later, _CALL2), _RESULTS2])
            for start in starts
        )

    def _renders(self, traits: TemplateTraits, turn: Sequence[AssistantPart]) -> bool:
        words = [
            _ARGUMENTS[part.call_id] if isinstance(part, Call) else part.text or "" for part in turn
        ]
        return self._shows(traits, [_QUESTION, _turn(*turn), _RESULTS2], words)

    def _inputs(self, traits: TemplateTraits) -> TemplateTraits:
        efforts = {
            name: self._levels(name) for name in EFFORT_VARIABLES if name in traits.variables
        }
        return replace(
            traits,
            tools=self._lists_tools(traits),
            switches=tuple(
                name for name in SWITCHES if name in traits.variables and self._accepts(name, False)
            ),
            efforts={name: levels for name, levels in efforts.items() if levels},
        )

    def _lists_tools(self, traits: TemplateTraits) -> bool:
        """Whether prompts list the tools, also after a result: some templates list them only after
        a user's message."""
        loop = adapt(
            Conversation("probe", [_QUESTION, _turn(_CALL), _RESULTS]), traits, self._template
        ).messages
        return all(
            self._try(messages, tools=[_TOOL]).count("zqtool") > self._try(messages).count("zqtool")
            for messages in ([FRAME_USER], loop)
        )

    def _levels(self, name: str) -> tuple[str, ...]:
        """The levels that a variable takes: low, medium and high, and others that the template
        names."""
        source = self._template.source
        taken = [level for level in ("none", *EFFORTS) if self._accepts(name, level)]
        return tuple(
            level
            for level in taken
            if level in ("low", "medium", "high")
            or f"'{level}'" in source
            or f'"{level}"' in source
        )

    def _accepts(self, name: str, value: Any) -> bool:
        return bool(self._try([FRAME_USER], variables={name: value}))

    def _first(
        self,
        candidates: Sequence[TemplateTraits],
        messages: list[Message],
        words: list[str],
        *,
        generation: bool = True,
    ) -> TemplateTraits | None:
        return next(
            (it for it in candidates if self._shows(it, messages, words, generation=generation)),
            None,
        )

    def _shows(
        self,
        traits: TemplateTraits,
        messages: list[Message],
        words: Sequence[str],
        *,
        generation: bool = True,
    ) -> bool:
        return _in_order(self._render(traits, messages, generation=generation), words)

    def _render(
        self, traits: TemplateTraits, messages: list[Message], *, generation: bool = True
    ) -> str:
        """The messages rendered with these traits; "" where the template refuses them."""
        adapted = adapt(Conversation("probe", messages), traits, self._template)
        return self._try(adapted.messages, generation=generation)

    def _render_frame(self, traits: TemplateTraits, turn: list[AssistantPart]) -> str:
        message = self._forms(traits).native(segments(turn)[0])
        return self._try([FRAME_USER, message], variables={}, generation=False)

    def _markup(self, traits: TemplateTraits, *calls: Call) -> str:
        try:
            return self._forms(traits).markup(calls)
        except Invalid:
            return ""

    def _forms(self, traits: TemplateTraits) -> AssistantWriter:
        return AssistantWriter(
            replace(traits, ordered=False),
            self._template,
            call_id=lambda call: _SHORT_IDS[call.call_id],
        )

    def _try(
        self,
        messages: list[TemplateMessage],
        *,
        tools: list[Tool] | None = None,
        variables: dict[str, Any] | None = None,
        generation: bool = True,
    ) -> str:
        try:
            return self._template.render(
                messages,
                tools=tools or [],
                variables=self._thinking if variables is None else variables,
                generation=generation,
            )
        except Invalid:
            return ""


_RAW = re.compile("""['"](?:thinking|reasoning|tool_call)['"]""")


def _in_order(text: str, words: Sequence[str]) -> bool:
    """Whether the text has each word once and in this order, and not because parts were printed as
    data."""
    places = [text.find(word) for word in words]
    return (
        all(text.count(word) == 1 for word in words)
        and places == sorted(places)
        and not _RAW.search(text)
    )
