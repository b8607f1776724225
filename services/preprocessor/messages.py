"""A conversation as the messages that one chat template reads, every part in its place.

Rules that hold for every template: text blocks of one message are one text, so a string and its single block are the
same; results follow the order in which they came; an instruction inside the conversation is never moved; what the
client spells in its own way (ids, argument JSON, blank text between blocks) does not reach the prompt.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

from msgspec import Struct

from schemas.conversation import Call, Conversation, Media, Part, Reasoning, Result, Text, Turn
from services.preprocessor.assistant import AssistantForms, Said, WriteCall
from services.preprocessor.call_names import CallNames
from services.preprocessor.template import Message, Tool
from services.preprocessor.traits import Renderer, TemplateTraits
from services.preprocessor.wording import (
    JOIN,
    call_text,
    instruction_text,
    list_tools,
    media_note,
    response_text,
    result_text,
    tool_name,
)

Unseal = Callable[[str], str | None]
"""The reasoning in a sealed blob, or None where the blob is foreign or damaged."""


class Place(Struct, frozen=True):
    """A place before a turn of the model: nothing that follows changes the messages before it."""

    turn: int
    """So many of the conversation's turns stand before it."""
    message: int
    """So many messages stand before it."""


class Begun(Struct, frozen=True):
    """The beginning of a conversation, adapted: it need not be done again."""

    turn: int
    messages: list[Message]
    calls: CallNames


class Adapted(Struct, frozen=True):
    """What goes into the template."""

    messages: list[Message]
    tools: list[Tool]
    """The tool list at the front: deferred tools are not in it, their place is the result that loads them."""
    continues: bool
    """The last message is the assistant's own and ends in text: the model goes on writing it."""
    places: list[Place] = []
    """Before each turn of the model, those of `begun` left out."""
    begun: Begun | None = None
    """The beginning of which use was made."""


def adapt(
    conversation: Conversation,
    traits: TemplateTraits,
    template: Renderer,
    *,
    unseal: Unseal | None = None,
    write_call: WriteCall = call_text,
    begun: Begun | None = None,
    shown: list[Tool] | None = None,
) -> Adapted:
    """The conversation in the template's form. `begun` is what was found for turns with which it begins, if it is
    known: at a `Place`, and with the same instructions and tools. `shown`: its tools, if they were made before.

    Reasoning of which neither the text nor a readable seal came is absent. Media become a note, a failed result gets a
    short prefix, a loaded tool's definition stands where it was loaded. Raises nothing; whether the template takes the
    messages is seen when they are rendered.
    """
    calls = begun.calls.grown(conversation.turns[begun.turn :], traits) if begun is not None else None
    if begun is None or calls is None:
        begun, calls = None, CallNames.of(conversation.turns, traits)
    forms = AssistantForms(
        traits, template, call_id=lambda call: calls.ids.get(call.call_id, call.call_id), write_call=write_call
    )
    writer = _Writer(conversation, traits, forms, calls, unseal=unseal, begun=begun)
    at = begun.turn if begun is not None else _lead(conversation)
    places: list[Place] = []
    continues = False
    for assistant, group in groupby(conversation.turns[at:], key=lambda turn: turn.role == "assistant"):
        turns = list(group)
        if assistant:
            if not writer.owes_preface:
                places.append(Place(at, len(writer.messages)))
            continues = writer.assistant([part for turn in turns for part in turn.parts])
        else:
            for turn in turns:
                continues = False
                writer.turn(turn)
        at += len(turns)
    tools = list_tools(conversation.tools) if shown is None else shown
    return Adapted(writer.messages, tools, continues and conversation.prefill, places, begun)


def _is_instruction(turn: Turn) -> bool:
    return turn.role in ("system", "developer")


def _lead(conversation: Conversation) -> int:
    """The number of instructions at the front."""
    turns = conversation.turns
    return next((index for index, turn in enumerate(turns) if not _is_instruction(turn)), len(turns))


def _leading_instructions(conversation: Conversation) -> str:
    """Top-level instructions and the instruction turns before anything else: one system message for every API."""
    texts = [text.text for text in conversation.system]
    for turn in conversation.turns:
        if not _is_instruction(turn):
            break
        texts += [part.text for part in turn.parts if isinstance(part, Text)]
    return JOIN.join(texts)


class _Writer:
    """Appends messages. One per conversation."""

    def __init__(
        self,
        conversation: Conversation,
        traits: TemplateTraits,
        forms: AssistantForms,
        calls: CallNames,
        *,
        unseal: Unseal | None,
        begun: Begun | None,
    ) -> None:
        self.messages: list[Message] = []
        self._traits = traits
        self._assistant = forms
        self._ids = calls.ids
        self._unseal = unseal
        self._tools = {tool_name(tool.name, tool.namespace): tool for tool in conversation.tools}
        self._names = calls.names
        self._split: list[Message] = []
        self._preface = ""
        if begun is not None:
            self.messages += begun.messages
        elif system := _leading_instructions(conversation):
            if traits.system == "none":
                self._preface = system
            else:
                self._append("system", system)

    @property
    def owes_preface(self) -> bool:
        """Instructions wait for a user message."""
        return bool(self._preface)

    def turn(self, turn: Turn) -> None:
        """A turn of any role but assistant. Results that stand among other parts keep their place."""
        for is_result, parts in groupby(turn.parts, key=lambda part: isinstance(part, Result)):
            if is_result:
                for part in parts:
                    if isinstance(part, Result):
                        self._result(part)
            else:
                text = _text_of(list(parts))
                if _is_instruction(turn):
                    self._instruction(text)
                else:
                    self._user(text)
        if not turn.parts and not _is_instruction(turn):
            self._user("")

    def assistant(self, parts: Sequence[Part]) -> bool:
        """A turn of the model. True if it ends in text."""
        if self._preface:
            self._user("")
        said = _said(parts, self._unseal)
        messages = self._assistant.messages(said)
        self.messages += messages
        self._split = messages if len(messages) > 1 else []
        return bool(said) and isinstance(said[-1], Text) and bool(said[-1].text)

    def _user(self, text: str) -> None:
        if self._preface:
            text, self._preface = (self._preface + "\n\n" + text if text else self._preface), ""
        last = self.messages[-1]["role"] if self.messages else None
        if (last == "user" and not self._traits.adjacent_users) or (
            last == "tool" and not self._traits.user_after_tool
        ):
            self._extend(text)
        else:
            self._append("user", text)

    def _instruction(self, text: str) -> None:
        """In place as a system message, else marked: as an end of the result before it, else as a user message.

        A result is preferred because many templates drop the reasoning of a tool loop at the next user message.
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
        text = result_text(result, self._tools)
        if not self._traits.tool_role or not self._names:
            self._user(response_text(text))
            return
        message = self._append("tool", text)
        message["tool_call_id"] = self._ids.get(result.call_id, result.call_id)
        name = self._names.get(result.call_id) or result.name
        if self._traits.tool_name and name:
            message["name"] = name
        self._join_call(message)

    def _join_call(self, result: Message) -> None:
        """Puts the result just added behind its own call, if the turn had to be split.

        The templates that need this know a call and its result as one unit: Gemma 4 writes the result into the model's
        turn, gpt-oss takes the tool's name from the last call.
        """
        for message in self._split:
            if any(call["id"] == result["tool_call_id"] for call in message.get("tool_calls", ())):
                self.messages.pop()
                place = next(index for index, other in enumerate(self.messages) if other is message) + 1
                while place < len(self.messages) and self.messages[place]["role"] == "tool":
                    place += 1
                self.messages.insert(place, result)
                return

    def _append(self, role: str, text: str) -> Message:
        content = [{"type": "text", "text": text}] if self._traits.content == "parts" else text
        message: Message = {"role": role, "content": content}
        self.messages.append(message)
        return message

    def _extend(self, text: str) -> None:
        last = self.messages[-1]
        if isinstance(last["content"], str):
            last["content"] += "\n\n" + text
        else:
            last["content"][-1]["text"] += "\n\n" + text


def _text_of(parts: Sequence[Part]) -> str:
    return JOIN.join(
        media_note(part) if isinstance(part, Media) else part.text or ""
        for part in parts
        if isinstance(part, Text | Media | Reasoning)
    )


def _said(parts: Sequence[Part], unseal: Unseal | None) -> list[Said]:
    """What the model said: no blank text beside other parts (clients drop it when they replay), texts joined."""
    said: list[Said] = []
    for part in parts:
        now: Said
        if isinstance(part, Call):
            now = part
        elif isinstance(part, Reasoning):
            text = part.text or (unseal(part.seal) if unseal is not None and part.seal else None)
            if not text:
                continue
            now = Reasoning(text)
        elif isinstance(part, Text | Media):
            now = Text(media_note(part)) if isinstance(part, Media) else part
            if not now.text.strip() and len(parts) > 1:
                continue
            if said and isinstance(last := said[-1], Text):
                said.pop()
                now = Text(last.text + JOIN + now.text)
        else:
            continue
        said.append(now)
    return said
