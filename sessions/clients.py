"""Sends turns back as real clients do, over all three APIs."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from msgspec import structs

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Part,
    Reasoning,
    Result,
    Sampling,
    Text,
    ToolSpec,
)
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.request import Responses
from turnwire_tools.clients import chat, messages, responses

JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Block:
    """A block as the client received it."""

    kind: str
    text: str
    """The text; for calls, the arguments."""
    name: str = ""
    call_id: str = ""
    seal: str = ""
    item_id: str = ""
    """Id of the Responses item."""


@dataclass
class Dialogue:
    """A session as its client knows it. `said`: blocks; results are (call id, text)."""

    system: str
    tools: list[dict[str, Any]]
    entries: list[tuple[str, Any]] = field(default_factory=list)


Client = Callable[[Dialogue], Conversation]


def javascript(text: str) -> Any:
    """Parses a text like JSON.parse, so that `json.dumps` writes it like JSON.stringify."""
    hooks: Any = {"parse_int": _double, "parse_float": _double, "object_pairs_hook": _object}
    return json.loads(text.strip() or "{}", **hooks)


def _double(digits: str) -> float | int | None:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        return None
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Keys that are numbers come first."""
    members = dict(pairs)
    indices = sorted((key for key in members if re.fullmatch("0|[1-9][0-9]{0,9}", key)), key=int)
    return {**{key: members[key] for key in indices}, **members}


def _conversation(
    dialogue: Dialogue,
    answer: Callable[[list[Block]], list[Part]],
    system: Literal["system", "developer"],
    *,
    ids: bool = False,
) -> Conversation:
    """Makes the conversation that a client sends. `answer`: parts of a turn of the model; `system`:
    role of system messages; `ids`: whether texts have the ids of their items."""
    messages: list[Message] = []
    for kind, what in dialogue.entries:
        if kind == "results":
            messages.append(
                Message("tool", [Result(call_id, [Text(text)]) for call_id, text in what])
            )
        elif kind in ("user", "system"):
            messages.append(Message("user" if kind == "user" else system, [Text(what)]))
        elif parts := answer(what):
            names = [block.item_id for block in _shown(what) if block.kind == "text"]
            messages.append(Message("assistant", parts, ids=names if ids else []))
    tools = [ToolSpec(tool["name"], "", tool["schema"]) for tool in dialogue.tools]
    return Conversation("m", messages, system=[Text(dialogue.system)], tools=tools)


def _shown(blocks: list[Block]) -> list[Block]:
    """Returns the blocks that clients send back: all but blank text."""
    return [block for block in blocks if block.kind != "text" or block.text.strip()]


def _parts(
    blocks: list[Block], thought: Callable[[Block], Reasoning | None], call: Callable[[Block], Call]
) -> list[Part]:
    parts: list[Part] = []
    for block in _shown(blocks):
        if block.kind == "text":
            parts.append(Text(block.text))
        elif block.kind == "tool_use":
            parts.append(call(block))
        elif (kept := thought(block)) is not None:
            parts.append(kept)
    return parts


def claude_code(dialogue: Dialogue) -> Conversation:
    """Thoughts with text and signature, inputs through JavaScript."""
    return _messages(dialogue, lambda block: Reasoning(block.text, block.seal))


def claude_code_omitted(dialogue: Dialogue) -> Conversation:
    """With `thinking.display: omitted`, as its side agents send: signatures without text."""
    return _messages(dialogue, lambda block: Reasoning("", block.seal))


def messages_without_thinking(dialogue: Dialogue) -> Conversation:
    """A client that drops thinking, as opencode does with what is unsigned."""
    return _messages(dialogue, lambda block: None)


def _messages(dialogue: Dialogue, thought: Callable[[Block], Reasoning | None]) -> Conversation:
    def call(block: Block) -> Call:
        return Call(block.call_id, block.name, json.dumps(javascript(block.text)))

    conversation = _conversation(dialogue, lambda blocks: _parts(blocks, thought, call), "system")
    conversation = structs.replace(conversation, sampling=Sampling(max_tokens=32_000))
    reader = Messages()
    body = reader.decode(messages.request(conversation), JSON)
    return reader.convert(body, JSON).conversation


def codex(dialogue: Dialogue) -> Conversation:
    """Reasoning and calls with ids, reasoning sealed, outputs after all calls of their turn."""
    return _responses(dialogue, lambda b: Reasoning(None, b.seal, id=b.item_id), ids=True)


def openclaw_responses(dialogue: Dialogue) -> Conversation:
    """Items without ids, in order."""
    return _responses(dialogue, lambda b: Reasoning(None, b.seal), ids=False)


def stored_responses(dialogue: Dialogue) -> Conversation:
    """A client that sends ids back and no reasoning."""
    return _responses(dialogue, lambda b: Reasoning(None, id=b.item_id), ids=True)


def _responses(
    dialogue: Dialogue, thought: Callable[[Block], Reasoning], *, ids: bool
) -> Conversation:
    def call(block: Block) -> Call:
        return Call(block.call_id, block.name, block.text, item_id=block.item_id if ids else None)

    conversation = _conversation(
        dialogue, lambda blocks: _parts(blocks, thought, call), "developer", ids=ids
    )
    instructions = Message("developer", [*conversation.system])
    conversation = structs.replace(
        conversation, system=[], messages=[instructions, *conversation.messages]
    )
    reader = Responses()
    return reader.convert(reader.decode(responses.request(conversation)), JSON).conversation


def openclaw_chat(dialogue: Dialogue) -> Conversation:
    """Reasoning joined by line breaks, ids without underscores."""
    return _chat(dialogue, "\n", spell_id=lambda call_id: call_id.replace("_", ""))


def opencode_chat(dialogue: Dialogue) -> Conversation:
    """Reasoning as it came, arguments as compact JSON."""

    def compact(arguments: str) -> str:
        return json.dumps(javascript(arguments), separators=(",", ":"), ensure_ascii=False)

    return _chat(dialogue, "", compact)


def plain_chat(dialogue: Dialogue) -> Conversation:
    """A client without reasoning, as most are."""
    return _chat(dialogue, None)


def _chat(
    dialogue: Dialogue,
    join: str | None,
    spell: Callable[[str], str] = str,
    spell_id: Callable[[str], str] = str,
) -> Conversation:
    def answer(blocks: list[Block]) -> list[Part]:
        parts: list[Part] = []
        thoughts = [block.text for block in blocks if block.kind == "reasoning"]
        texts = [block.text for block in blocks if block.kind == "text"]
        if thoughts and join is not None:
            parts.append(Reasoning(join.join(thoughts)))
        if texts:
            parts.append(Text("".join(texts)))
        calls = [block for block in blocks if block.kind == "tool_use"]
        return parts + [Call(spell_id(b.call_id), b.name, spell(b.text)) for b in calls]

    def spelled(kind: str, what: Any) -> tuple[str, Any]:
        if kind == "results":
            what = [(spell_id(call_id), text) for call_id, text in what]
        return kind, what

    dialogue = replace(dialogue, entries=[spelled(kind, what) for kind, what in dialogue.entries])
    conversation = _conversation(dialogue, answer, "system")
    return Chat().parse(chat.request(conversation), JSON).conversations[0]


CLIENTS: Mapping[str, Client] = {
    "claude-code": claude_code,
    "claude-code-omitted": claude_code_omitted,
    "messages-without-thinking": messages_without_thinking,
    "codex": codex,
    "openclaw-responses": openclaw_responses,
    "openclaw-chat": openclaw_chat,
    "opencode-chat": opencode_chat,
    "plain-chat": plain_chat,
    "responses-ids": stored_responses,
}
