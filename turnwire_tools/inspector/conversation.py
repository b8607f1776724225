"""What a request adds to the conversation of its session, in items that the page shows. Pure.

Each request of an agent has the whole history. Only what a session did not have before is kept of
it, so that a session takes memory for each text once. Instructions and tools, which many sessions
have in common, are kept once for all of them.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import chain, takewhile
from operator import eq
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from xxhash import xxh3_128_digest

from schemas import token_ids
from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Part,
    RawPrompt,
    Reasoning,
    Result,
    ResultPart,
    Role,
    Text,
    ToolReference,
    ToolSpec,
)
from schemas.events import PromptImage
from services.ledger.turns.chain import content_of
from services.templates.messages import is_answer

ItemKind: TypeAlias = Literal[
    "system", "tool", "user", "text", "reasoning", "tool_use", "result", "media", "prompt"
]
"""system: instructions.  tool: its definition.  text, reasoning, tool_use: an answer in the
history that was not seen as a turn.  media: an image, document or sound, in a question or a
result.  prompt: that of Completions."""
MAX_TEXT = 256 * 1024
"""Characters of a text that are kept."""
ADDED = "added by the client"
DEFERRED = "deferred"
_TAGGED = re.compile(r"\s*<([A-Za-z][\w-]*)>.*?</\1>\s*", re.DOTALL)
"""A part that a client adds to a question: `<system-reminder>`, `<environment_context>`."""
_ADDED = re.compile(r"# AGENTS\.md instructions\b")
"""Begins the project's instructions, which Codex sends as a message of the user."""
_encode = msgspec.json.Encoder().encode


class Item(Struct, frozen=True, omit_defaults=True):
    """One part of a conversation."""

    kind: ItemKind
    text: str = ""
    """At most `MAX_TEXT` characters; of a tool its description and schema."""
    length: int = 0
    """Characters of the whole text."""
    name: str = ""
    """The name of a tool, or the file name of a medium."""
    call_id: str = ""
    error: bool = False
    """The tool failed."""
    image: str = ""
    """`Media.hash`."""
    facts: str = ""
    """Kind and size of a medium, of a prompt without text its number of tokens, `ADDED`, or of a
    tool `DEFERRED`."""


class Head(Struct, frozen=True, eq=False):
    """The instructions and tools at the start of a prompt."""

    key: bytes
    system: list[Item]
    tools: list[Item]

    @property
    def characters(self) -> int:
        """Characters of all texts."""
        return sum(item.length for item in [*self.system, *self.tools])


class Addition(Struct, frozen=True, eq=False):
    """What a request adds to its session."""

    head: Head
    items: list[Item]
    rewritten: int = 0
    """Earlier messages that the client changed or left out."""
    total: int = 0
    """Characters of all texts of the request, without deferred tools."""
    images: list[PromptImage] = []
    """The images in the prompt, once it is known."""

    @property
    def characters(self) -> int:
        """Characters that are kept of the items."""
        return sum(len(item.text) for item in self.items)


NOTHING_ADDED = Addition(Head(b"", [], []), [])


class Heads:
    """The heads of all turns that are kept, each of them once."""

    def __init__(self, *, texts: bool) -> None:
        """`texts`: whether texts are kept."""
        self._texts = texts
        self._heads: dict[bytes, tuple[Head, int]] = {}
        """Heads with the number of their turns."""
        self.characters = 0

    def take(self, conversation: Conversation) -> Head:
        """The head of a turn's prompt. `release` it when the turn is dropped."""
        key = xxh3_128_digest(_encode((conversation.system, conversation.tools)))
        head, turns = self._heads.get(key, (None, 0))
        if head is None:
            system = [_text("system", part.text, self._texts) for part in conversation.system]
            tools = [_tool(tool, self._texts) for tool in conversation.tools]
            head = Head(key, system, tools)
            self.characters += head.characters
        self._heads[key] = head, turns + 1
        return head

    def release(self, head: Head) -> None:
        """Drops the head after its last turn."""
        turns = self._heads[head.key][1] - 1
        if turns:
            self._heads[head.key] = head, turns
        else:
            del self._heads[head.key]
            self.characters -= head.characters


def addition(
    conversation: Conversation,
    before: Conversation | None,
    head: Head,
    characters: int,
    *,
    texts: bool,
) -> Addition:
    """What a request adds to the previous one of its session.

    `before`: None: there is none, and all messages are new. `characters`: those of its messages.
    `texts`: whether texts are kept.
    """
    messages = conversation.messages
    rewritten = 0
    new: Sequence[Message] = messages
    if before is not None:
        new, rewritten = _new_messages(before.messages, messages)
    items = list(_items(new, _call_names(messages, new), texts))
    shown = sum(item.length for item in [*head.system, *listed(head.tools)])
    if conversation.prompt is not None:
        items.append(_raw_prompt(conversation.prompt, texts))
        shown += items[-1].length
    return Addition(head, items, rewritten, shown + characters)


def listed(tools: Iterable[Item]) -> list[Item]:
    """The tools at the start of a prompt: the result that finds a deferred one has it."""
    return [tool for tool in tools if tool.facts != DEFERRED]


def latest_messages(conversation: Conversation) -> Conversation:
    """The conversation up to the newest answer, for a session with an unknown previous request."""
    messages = conversation.messages
    answered = messages[: -_unanswered(messages) or None]
    return msgspec.structs.replace(conversation, messages=answered)


def share_texts(conversation: Conversation, before: Conversation) -> tuple[Conversation, int]:
    """The conversation with the objects of an earlier one where both are equal, so that two
    requests of a session take the memory of one; and how many messages at the start are."""
    messages = conversation.messages
    shared = _common(before.messages, messages)
    kept = before.messages[:shared] + messages[shared:]
    tools, system = conversation.tools, conversation.system
    if tools == before.tools:
        tools = before.tools
    if system == before.system:
        system = before.system
    return msgspec.structs.replace(conversation, messages=kept, tools=tools, system=system), shared


def _common(
    before: list[Message], now: list[Message], is_same: Callable[[Message, Message], bool] = eq
) -> int:
    """How many messages at the start are the same."""
    if now[: len(before)] == before:  # ten times as fast as one by one
        return len(before)
    return sum(1 for _ in takewhile(bool, map(is_same, before, now)))


def _new_messages(before: list[Message], now: list[Message]) -> tuple[list[Message], int]:
    """The messages that are not of the history, and how many of the history have changed. The
    answer to the previous request, which its turn has, is not new."""
    start = _common(before, now, _is_same)
    was, messages = before[start:], now[start:]
    # A client may repeat its newest question word for word: it is not the one before.
    answered = messages[: -_unanswered(messages) or None]
    matcher = SequenceMatcher(None, list(map(_content, was)), list(map(_content, answered)))

    new: list[Message] = []
    rest = at = same = 0
    for block in matcher.get_matching_blocks()[:-1]:
        new += messages[at : block.b]
        rest, at = block.a + block.size, block.b + block.size
        same += block.size
    end = at + len(was) - rest  # these replace the rest of the history
    following = messages[end:]
    answer = takewhile(is_answer, following)
    new += messages[at:end]
    return [*new, *following[sum(1 for _ in answer) :]], len(was) - same


def _unanswered(messages: Sequence[Message]) -> int:
    """How many messages come after the newest answer."""
    return sum(1 for _ in takewhile(lambda message: not is_answer(message), reversed(messages)))


def _is_same(before: Message, now: Message) -> bool:
    """Whether two messages have the same content, apart from reasoning."""
    return before == now or _content(before) == _content(now)


def _content(message: Message) -> Hashable:
    """What is the same of a message in every form in which clients send it back."""
    if message.role == "assistant":
        return content_of(message.parts)
    return message.role, _encode(message.parts)


def _call_names(messages: Sequence[Message], new: Iterable[Message]) -> dict[str, str]:
    """The names of calls by id, at least of those with results in new messages."""
    wanted = {part.call_id for part in _parts(new) if isinstance(part, Result)}
    names: dict[str, str] = {}
    for part in _parts(reversed(messages)):
        if wanted <= names.keys():
            break
        if isinstance(part, Call):
            names.setdefault(part.call_id, part.name)
    return names


def _items(messages: Sequence[Message], names: dict[str, str], texts: bool) -> Iterator[Item]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, Result):
                yield from _result(part, part.name or names.get(part.call_id, ""), texts)
            else:
                yield _part(part, message.role, texts)


_OF_ROLE: dict[Role, ItemKind] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "text",
    "tool": "result",
}


def _part(part: Text | Media | Reasoning | Call, role: Role, texts: bool) -> Item:
    match part:
        case Text():
            item = _text(_OF_ROLE[role], part.text, texts)
            is_added = role == "user" and not without_additions(part.text)
            return msgspec.structs.replace(item, facts=ADDED) if is_added else item
        case Reasoning():
            return _text("reasoning", part.text or "", texts)
        case Call():
            call = _text("tool_use", part.arguments, texts)
            return msgspec.structs.replace(call, name=part.name, call_id=part.call_id)
        case Media():
            return _media(part, texts)


def _result(result: Result, name: str, texts: bool) -> Iterator[Item]:
    text = "\n".join(_words(part) for part in result.parts if not isinstance(part, Media))
    item = _text("result", text, texts)
    yield msgspec.structs.replace(
        item, name=name, call_id=result.call_id, error=bool(result.is_error)
    )
    for part in result.parts:
        if isinstance(part, Media):
            yield _media(part, texts, result.call_id)


def _words(part: ResultPart) -> str:
    match part:
        case Text():
            return part.text
        case ToolReference():
            return f"[the tool {part.name}]"
        case Media():
            return ""


def _media(media: Media, texts: bool, call_id: str = "") -> Item:
    facts = [media.media_type or media.kind]
    if media.width:
        facts.append(f"{media.width} × {media.height}")
    if media.size_bytes is not None:
        facts.append(f"{media.size_bytes / 1000:,.1f} kB")
    if not texts:
        return Item("media", call_id=call_id, facts=", ".join(facts))
    if media.url:
        facts.append(media.url[:200])
    if media.problem:
        facts.append(media.problem)
    return Item(
        "media",
        name=media.title or "",
        call_id=call_id,
        image=media.hash,
        facts=", ".join(facts),
    )


def _tool(tool: ToolSpec, texts: bool) -> Item:
    schema = _encode(tool.schema).decode()
    item = _text("tool", f"{tool.description}\n\n{schema}", texts)
    name = f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name
    return msgspec.structs.replace(item, name=name, facts=DEFERRED if tool.deferred else "")


def _raw_prompt(prompt: RawPrompt, texts: bool) -> Item:
    if prompt.text is not None:
        return _text("prompt", prompt.text, texts)
    count = len(token_ids.unpack_array(prompt.token_ids))
    return Item("prompt", facts=f"{count:,} token ids")


def _text(kind: ItemKind, text: str, texts: bool) -> Item:
    return Item(kind, text[:MAX_TEXT] if texts else "", len(text))


def without_additions(text: str) -> str:
    """A user's text without the parts that a client adds to it."""
    text = _ADDED.split(text, maxsplit=1)[0]
    at = 0
    while tagged := _TAGGED.match(text, at):
        at = tagged.end()
    return text[at:].strip()


def characters_of(messages: Sequence[Message]) -> int:
    """Characters of all texts of these messages."""
    return sum(map(_length, _parts(messages)))


def _parts(messages: Iterable[Message]) -> Iterator[Part]:
    return chain.from_iterable(message.parts for message in messages)


def _length(part: Part) -> int:
    match part:
        case Text():
            return len(part.text)
        case Reasoning():
            return len(part.text or "")
        case Call():
            return len(part.arguments)
        case Result():
            return sum(len(_words(inner)) for inner in part.parts)
        case Media():
            return 0
