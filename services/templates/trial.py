"""Small conversations for the trial of a chat template: their words, and whether the template
renders each of them once and in order."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from schemas.conversation import (
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
from services.templates.assistant import FRAME_USER, AssistantPart, AssistantWriter, segments
from services.templates.chat_template import ChatTemplate, TemplateMessage, TemplateTool
from services.templates.messages import adapt
from services.templates.thinking import KEEP_HISTORY, SWITCHES
from services.templates.tools import tool_definition
from services.templates.traits import TemplateTraits

SYSTEM = "zqsystem1"
SYSTEM2 = "zqsystem2"
SYSTEM3 = "zqsystem3"
USER = "zquser1"
USER2 = "zquser2"
THOUGHT = "zqthought1"
THOUGHT2 = "zqthought2"
ANSWER = "zqsaid1"
ANSWER2 = "zqsaid2"
ARGUMENT = "zqargument1"
ARGUMENT2 = "zqargument2"
RESULT = "zqresult1"
RESULT2 = "zqresult2"
ID = "toolu_zqid1"
ID2 = "toolu_zqid2"
SHORT_IDS = {ID: "000000001", ID2: "000000002"}
ARGUMENTS = {ID: ARGUMENT, ID2: ARGUMENT2}

TOOL_NAME = "zqtool"
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = tool_definition(ToolSpec(TOOL_NAME, "zqdescription", _SCHEMA))

CALL_PART = Call(ID, TOOL_NAME, f'{{"city": "{ARGUMENT}"}}')
CALL_PART2 = Call(ID2, TOOL_NAME, f'{{"city": "{ARGUMENT2}"}}')
THOUGHT_PART = Reasoning(THOUGHT)
THOUGHT_PART2 = Reasoning(THOUGHT2)
TEXT_PART = Text(ANSWER)
TEXT_PART2 = Text(ANSWER2)

QUESTION = Message("user", [Text(USER)])
QUESTION2 = Message("user", [Text(USER2)])
ONE_RESULT = Message("tool", [Result(ID, [Text(RESULT)])])
TWO_RESULTS = Message("tool", [Result(ID, [Text(RESULT)]), Result(ID2, [Text(RESULT2)])])
"""The results of both calls."""
_PRINTED_DATA = re.compile("""['"](?:thinking|reasoning|tool_call)['"]""")


def turn(*parts: Part) -> Message:
    """A turn of the model."""
    return Message("assistant", list(parts))


def words_of(parts: Sequence[AssistantPart]) -> list[str]:
    """The word that each part of a turn is recognized by."""
    return [
        ARGUMENTS[part.call_id] if isinstance(part, Call) else part.text or "" for part in parts
    ]


def in_order(text: str, words: Sequence[str]) -> bool:
    """Whether the text has each word once and in this order, and not because parts were printed as
    data."""
    if any(text.count(word) != 1 for word in words):
        return False
    places = [text.find(word) for word in words]
    return places == sorted(places) and not _PRINTED_DATA.search(text)


class TemplateTrial:
    """Renders small conversations with one template, with thinking on. What the template refuses
    is ""."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        names = template.variables
        self._thinking: dict[str, Any] = {
            name: value for name, value in KEEP_HISTORY.items() if name in names
        }
        self._thinking |= {name: True for name in SWITCHES if name in names}
        if "thinking_mode" in names:
            self._thinking["thinking_mode"] = "enabled"

    def render(
        self,
        messages: list[TemplateMessage],
        *,
        tools: list[TemplateTool] | None = None,
        variables: dict[str, Any] | None = None,
        generation: bool = True,
    ) -> str:
        """The text of messages in the template's form. `variables`: instead of those that turn
        thinking on."""
        if variables is None:
            variables = self._thinking
        try:
            return self.template.render(
                messages, tools=tools or [], variables=variables, generation=generation
            )
        except Invalid:
            return ""

    def adapted(self, traits: TemplateTraits, messages: list[Message]) -> list[TemplateMessage]:
        """Messages in the form that these traits describe."""
        return adapt(Conversation("probe", messages), traits, self.template).messages

    def text(
        self, traits: TemplateTraits, messages: list[Message], *, generation: bool = True
    ) -> str:
        """The text of messages in the form that these traits describe."""
        return self.render(self.adapted(traits, messages), generation=generation)

    def shows(
        self,
        traits: TemplateTraits,
        messages: list[Message],
        words: Sequence[str],
        *,
        generation: bool = True,
    ) -> bool:
        """Whether the template renders all words, once and in order."""
        return in_order(self.text(traits, messages, generation=generation), words)

    def shows_turn(self, traits: TemplateTraits, parts: Sequence[AssistantPart]) -> bool:
        """Whether the template renders all parts of a turn, once and in order."""
        return self.shows(traits, [QUESTION, turn(*parts), TWO_RESULTS], words_of(parts))

    def first_that_shows(
        self,
        candidates: Sequence[TemplateTraits],
        messages: list[Message],
        words: list[str],
        *,
        generation: bool = True,
    ) -> TemplateTraits | None:
        """The first traits with which the template renders all words, once and in order."""
        for traits in candidates:
            if self.shows(traits, messages, words, generation=generation):
                return traits
        return None

    def writer(self, traits: TemplateTraits) -> AssistantWriter:
        """Writes turns in the fields or the markup of the template."""
        return AssistantWriter(replace(traits, ordered=False), self.template, call_ids=SHORT_IDS)

    def markup(self, traits: TemplateTraits, *calls: Call) -> str:
        """Calls as the template writes them."""
        try:
            return self.writer(traits).markup(calls)
        except Invalid:
            return ""

    def framed(self, traits: TemplateTraits, parts: list[AssistantPart]) -> str:
        """A turn in the small conversation from which calls are cut out."""
        message = self.writer(traits).native(segments(parts)[0])
        return self.render([FRAME_USER, message], variables={}, generation=False)
