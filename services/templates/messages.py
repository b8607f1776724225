"""Adapts a conversation to the messages that a chat template reads, with every part in its place.

For every template: the text blocks of a message are one text, so that a string equals its single
block; results keep their order; an instruction inside the conversation is never moved; the client's
own spelling (ids, argument JSON, blank text between blocks) does not reach the prompt.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby, takewhile

from msgspec import Struct

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    Unseal,
    opens_nothing,
)
from schemas.errors import Invalid
from services.templates.assistant import AssistantPart, AssistantWriter, WriteCall
from services.templates.chat_template import ChatTemplate, TemplateMessage, TemplateTool
from services.templates.traits import TemplateTraits
from services.templates.wording import (
    call_text,
    instruction_text,
    join_blocks,
    media_text,
    response_text,
    result_text,
)
from services.tokenization.data_marks import DataMarks


class TemplateInput(Struct, frozen=True):
    """A conversation as the chat template reads it."""

    messages: list[TemplateMessage]
    continues: bool
    """The last message is the assistant's, ends in text, and the model continues it."""


def adapt(
    conversation: Conversation,
    traits: TemplateTraits,
    template: ChatTemplate,
    *,
    unseal: Unseal = opens_nothing,
    write_call: WriteCall = call_text,
    marks: DataMarks | None = None,
) -> TemplateInput:
    """The conversation in the template's form. `marks`: escapes every text and name that is not the
    server's own, so that no control token is made of it; tags of reasoning keep their meaning in
    the assistant's text where the template reads them there.

    Reasoning without text or a readable seal is absent. Images become a mark, other media a note, a
    failed result gets a short prefix, a loaded tool is defined where it was loaded. Raises nothing:
    a template may still refuse the messages.
    """
    writer = _ConversationWriter(
        conversation, traits, template, unseal=unseal, write_call=write_call, marks=marks
    )
    _, first_other = leading_instructions(conversation)
    continues = False
    for is_turn, group in groupby(conversation.messages[first_other:], key=is_answer):
        messages = list(group)
        if is_turn:
            parts = chain.from_iterable(message.parts for message in messages)
            continues = writer.write_turn(list(parts))
        else:
            for message in messages:
                continues = False
                writer.write_message(message)
    return TemplateInput(writer.messages, continues and conversation.continues_answer)


def render_messages(
    messages: list[Message],
    traits: TemplateTraits,
    template: ChatTemplate,
    *,
    tools: list[TemplateTool] | None = None,
    write_call: WriteCall = call_text,
    generation: bool = True,
) -> str:
    """The messages as the template renders them; "" where it refuses them."""
    adapted = adapt(Conversation("probe", messages), traits, template, write_call=write_call)
    try:
        return template.render(adapted.messages, tools=tools or [], generation=generation)
    except Invalid:
        return ""


def is_answer(message: Message) -> bool:
    """Whether a message is the model's."""
    return message.role == "assistant"


def is_instruction(message: Message) -> bool:
    """Whether a message is the operator's, in whatever role the API has for that."""
    return message.role in ("system", "developer")


def leading_instructions(conversation: Conversation) -> tuple[list[str], int]:
    """Top-level instructions and the instructions at the start of the messages, which are one
    message in every API; and the index of the first other message."""
    texts = [text.text for text in conversation.system]
    first_other = 0
    for message in takewhile(is_instruction, conversation.messages):
        texts += [_part_text(part) for part in message.parts if isinstance(part, Text | Media)]
        first_other += 1
    return texts, first_other


class _ConversationWriter:
    def __init__(
        self,
        conversation: Conversation,
        traits: TemplateTraits,
        template: ChatTemplate,
        *,
        unseal: Unseal,
        write_call: WriteCall,
        marks: DataMarks | None,
    ) -> None:
        self.messages: list[TemplateMessage] = []
        self._traits = traits
        self._unseal = unseal
        self._marks = marks
        self._tools = conversation.tools
        self._names: dict[str, str] = {}
        """Tool names by call id. If two calls have the same id, the later counts for all
        results."""
        self._ids: dict[str, str] = {}
        """The template's ids by call id, where they are not the client's: those that the model
        wrote, else by position."""
        self._read_calls(conversation.messages)
        self._assistant = AssistantWriter(
            traits,
            template,
            call_ids=self._ids,
            write_call=write_call,
            marker=None if marks is None else marks.data,
        )
        self._split: list[TemplateMessage] = []
        self._preface = ""
        """Instructions that the next message of the user begins with."""
        instructions, _ = leading_instructions(conversation)
        system = join_blocks(map(self._mark, instructions))
        if system and traits.system == "none":
            self._preface = system
        elif system:
            self._append("system", system)

    def _mark(self, text: str) -> str:
        return text if self._marks is None else self._marks.data.mark(text)

    def _read_calls(self, messages: Iterable[Message]) -> None:
        parts = chain.from_iterable(message.parts for message in messages)
        calls = (part for part in parts if isinstance(part, Call))
        for number, call in enumerate(calls):
            name = self._names[call.call_id] = call.rendered_name
            if self._traits.calls.ids == "short":
                self._ids[call.call_id] = f"{number:09d}"
            elif call.original_id:
                self._ids[call.call_id] = call.original_id
            elif self._traits.calls.ids == "counted":
                self._ids[call.call_id] = f"functions.{name}:{number}"

    def write_message(self, message: Message) -> None:
        """Writes a message of any role but assistant. Results among other parts keep their
        place."""
        write_text = self._instruction if is_instruction(message) else self._user
        beside: list[Part] = []
        for part in message.parts:
            if not isinstance(part, Result):
                beside.append(part)
                continue
            if beside:
                write_text(self._mark(_text_of(beside)))
                beside = []
            self._result(part)
        if beside:
            write_text(self._mark(_text_of(beside)))
        if not message.parts and not is_instruction(message):
            self._user("")

    def write_turn(self, parts: Sequence[Part]) -> bool:
        """Writes a turn of the model. Returns whether it ends in text."""
        if self._preface:
            self._user("")
        written = self._mark_assistant(_normalize(parts, self._unseal))
        messages = self._assistant.messages(written)
        self.messages += messages
        self._split = messages if len(messages) > 1 else []
        return bool(written) and isinstance(written[-1], Text) and bool(written[-1].text)

    def _user(self, text: str) -> None:
        if self._preface:
            text = self._preface + "\n\n" + text if text else self._preface
            self._preface = ""
        if self._may_follow():
            self._append("user", text)
        else:
            self._extend(text)

    def _may_follow(self) -> bool:
        """Whether a message of the user may follow the last one."""
        last = self.messages[-1]["role"] if self.messages else None
        if last == "user":
            return self._traits.adjacent_users
        return last != "tool" or self._traits.user_after_tool

    def _instruction(self, text: str) -> None:
        """Writes a system message, or marked text: at the end of the result before it, else as a
        user message.

        A result comes first because many templates drop the reasoning of a tool loop at the next
        user message.
        """
        if not text.strip():
            return
        if self._traits.system == "anywhere":
            self._append("system", text)
        elif self.messages and self.messages[-1]["role"] == "tool":
            self._extend(instruction_text(text))
        else:
            self._user(instruction_text(text))

    def _result(self, result: Result) -> None:
        text = self._mark(result_text(result, self._tools))
        if not self._traits.tool_role or not self._names:
            self._user(response_text(text))
            return
        message = self._append("tool", text)
        message["tool_call_id"] = self._mark(self._ids.get(result.call_id, result.call_id))
        name = self._names.get(result.call_id) or result.name
        if self._traits.tool_name and name:
            message["name"] = self._mark(name)
        self._join_call(message)

    def _join_call(self, result: TemplateMessage) -> None:
        """Moves the newest result after its own call, if the turn was split.

        Some templates treat a call and its result as one unit: Gemma 4 writes the result into the
        model's turn, gpt-oss takes the tool's name from the last call.
        """
        for message in self._split:
            if any(call["id"] == result["tool_call_id"] for call in message.get("tool_calls", ())):
                self.messages.pop()
                self.messages.insert(self._end_of_results(message), result)
                return

    def _end_of_results(self, call: TemplateMessage) -> int:
        """The index after the results that follow the message with a call."""
        index = next(number for number, other in enumerate(self.messages, 1) if other is call)
        while index < len(self.messages) and self.messages[index]["role"] == "tool":
            index += 1
        return index

    def _mark_assistant(self, parts: list[AssistantPart]) -> list[AssistantPart]:
        """Marks texts and reasoning; calls are marked as they are written."""
        marks = self._marks
        if marks is None:
            return parts
        marked: list[AssistantPart] = []
        for part in parts:
            if isinstance(part, Text):
                marked.append(Text(marks.assistant.mark(part.text)))
            elif isinstance(part, Reasoning) and part.text:
                marked.append(Reasoning(self._mark(part.text)))
            else:
                marked.append(part)
        return marked

    def _append(self, role: str, text: str) -> TemplateMessage:
        content = [{"type": "text", "text": text}] if self._traits.content == "parts" else text
        message: TemplateMessage = {"role": role, "content": content}
        self.messages.append(message)
        return message

    def _extend(self, text: str) -> None:
        last = self.messages[-1]
        if isinstance(last["content"], str):
            last["content"] += "\n\n" + text
        else:
            last["content"][-1]["text"] += "\n\n" + text


def _text_of(parts: Sequence[Part]) -> str:
    visible = (part for part in parts if isinstance(part, Text | Media | Reasoning))
    return join_blocks(map(_part_text, visible))


def _part_text(part: Text | Media | Reasoning) -> str:
    if isinstance(part, Media):
        return media_text(part)
    return part.text or ""


def _normalize(parts: Sequence[Part], unseal: Unseal) -> list[AssistantPart]:
    """The parts of the model's turn without blank text beside others, which clients drop, and with
    texts joined."""
    normal: list[AssistantPart] = []
    for part in parts:
        if isinstance(part, Call):
            normal.append(part)
        elif isinstance(part, Reasoning):
            thought = thought_of(part, unseal)
            if thought:
                normal.append(Reasoning(thought))
        elif isinstance(part, Text | Media):
            text = _part_text(part)
            if text.strip() or len(parts) == 1:
                _add_text(normal, text)
    return normal


def thought_of(part: Reasoning, unseal: Unseal) -> str | None:
    """The text of reasoning, if need be from its seal."""
    if part.text or not part.seal:
        return part.text
    return unseal(part.seal)


def _add_text(parts: list[AssistantPart], text: str) -> None:
    last = parts[-1] if parts else None
    if isinstance(last, Text):
        parts[-1] = Text(join_blocks((last.text, text)))
    else:
        parts.append(Text(text))
