"""What real clients make of a turn when they send it back: bodies of all three APIs."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.conversation import Conversation
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.messages.request import parse as parse_messages
from services.frontend.apis.responses.dialect import Responses

JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Block:
    """A block as the server's events told it."""

    kind: str
    text: str
    """For calls: the arguments."""
    name: str = ""
    call_id: str = ""
    seal: str = ""
    item_id: str = ""
    """Of the Responses item."""


@dataclass
class Dialogue:
    """A session as its client knows it. `said` holds blocks; results are (call id, text)."""

    system: str
    tools: list[dict[str, Any]]
    entries: list[tuple[str, Any]] = field(default_factory=list)


Client = Callable[[Dialogue], Conversation]


def javascript(text: str) -> Any:
    """What JSON.parse makes of a text, in a form that `json.dumps` writes as JSON.stringify would."""
    return json.loads(text, parse_int=_double, parse_float=_double, object_pairs_hook=_object) if text.strip() else {}


def _double(digits: str) -> float | int | None:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        return None
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    given = dict(pairs)
    indices = sorted((key for key in given if re.fullmatch("0|[1-9][0-9]{0,9}", key)), key=int)
    return {**{key: given[key] for key in indices}, **given}


def _shown(blocks: list[Block]) -> list[Block]:
    """Blank text is dropped on replay by every one of them."""
    return [block for block in blocks if block.kind != "text" or block.text.strip()]


# -- Messages ---------------------------------------------------------------------------------------------------------


def claude_code(dialogue: Dialogue) -> Conversation:
    """Thoughts with text and signature, inputs through JavaScript, the last message in blocks, others as strings."""
    return _messages(dialogue, lambda block: {"thinking": block.text, "signature": block.seal})


def claude_code_omitted(dialogue: Dialogue) -> Conversation:
    """With `thinking.display: omitted`, as its side agents send: signatures without text."""
    return _messages(dialogue, lambda block: {"thinking": "", "signature": block.seal})


def messages_without_thinking(dialogue: Dialogue) -> Conversation:
    """A client that drops thinking, as opencode does with what is unsigned."""
    return _messages(dialogue, lambda block: None)


def _messages(dialogue: Dialogue, thought: Callable[[Block], Mapping[str, Any] | None]) -> Conversation:
    messages: list[dict[str, Any]] = []
    last = len(dialogue.entries) - 1
    for index, (kind, what) in enumerate(dialogue.entries):
        if kind == "user":
            content: Any = [{"type": "text", "text": what, "cache_control": {"type": "ephemeral"}}]
            messages.append({"role": "user", "content": content if index == last else what})
        elif kind == "system":
            messages.append({"role": "system", "content": what})
        elif kind == "results":
            results = [
                {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": text}]}
                for call_id, text in what
            ]
            messages.append({"role": "user", "content": results})
        else:
            content = []
            for block in _shown(what):
                if block.kind == "reasoning":
                    kept = thought(block)
                    content += [{"type": "thinking", **kept}] if kept is not None else []
                elif block.kind == "text":
                    content.append({"type": "text", "text": block.text})
                else:
                    given = {"id": block.call_id, "name": block.name, "input": javascript(block.text)}
                    content.append({"type": "tool_use", **given})
            if content:
                messages.append({"role": "assistant", "content": content})
    body = {
        "model": "m",
        "max_tokens": 32000,
        "system": [{"type": "text", "text": dialogue.system}],
        "messages": messages,
        "tools": [{"name": t["name"], "description": "", "input_schema": t["schema"]} for t in dialogue.tools],
    }
    return parse_messages(json.dumps(body).encode(), JSON).conversations[0]


# -- Responses --------------------------------------------------------------------------------------------------------


def codex(dialogue: Dialogue) -> Conversation:
    """Every item with an id, reasoning sealed, outputs behind all calls of their turn."""
    return _responses(dialogue, lambda b: {"summary": [], "content": None, "encrypted_content": b.seal}, ids=True)


def openclaw_responses(dialogue: Dialogue) -> Conversation:
    """Items without ids, in order."""
    return _responses(dialogue, lambda b: {"summary": [], "encrypted_content": b.seal}, ids=False)


def stored_responses(dialogue: Dialogue) -> Conversation:
    """A client that sends ids back and no reasoning."""
    return _responses(dialogue, lambda b: {"summary": []}, ids=True)


def _responses(dialogue: Dialogue, thought: Callable[[Block], dict[str, Any]], *, ids: bool) -> Conversation:
    items: list[dict[str, Any]] = [{"type": "message", "role": "developer", "content": _input(dialogue.system)}]
    for kind, what in dialogue.entries:
        if kind in ("user", "system"):
            role = "user" if kind == "user" else "developer"
            items.append({"type": "message", "role": role, "content": _input(what)})
        elif kind == "results":
            items += [{"type": "function_call_output", "call_id": call_id, "output": text} for call_id, text in what]
        else:
            for block in _shown(what):
                if block.kind == "reasoning":
                    items.append({"type": "reasoning", **thought(block)})
                elif block.kind == "text":
                    content = [{"type": "output_text", "text": block.text, "annotations": []}]
                    items.append({"type": "message", "role": "assistant", "content": content})
                else:
                    given = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
                    items.append({"type": "function_call", **given})
                items[-1] |= {"id": block.item_id} if ids else {}
    if ids:
        for index, item in enumerate(items):
            item.setdefault("id", f"{item['type'][:2]}_{index}")
    tools = [{"type": "function", "name": t["name"], "parameters": t["schema"]} for t in dialogue.tools]
    body = {"model": "m", "input": items, "tools": tools, "store": False, "include": ["reasoning.encrypted_content"]}
    return Responses().parse(json.dumps(body).encode(), JSON).conversations[0]


def _input(text: str) -> list[dict[str, Any]]:
    return [{"type": "input_text", "text": text}]


# -- Chat -------------------------------------------------------------------------------------------------------------


def openclaw_chat(dialogue: Dialogue) -> Conversation:
    """Reasoning joined by line breaks, ids without underscores."""
    return _chat(dialogue, "\n", lambda arguments: arguments, lambda call_id: call_id.replace("_", ""))


def opencode_chat(dialogue: Dialogue) -> Conversation:
    """Reasoning as it came, arguments as compact JSON."""
    compact = lambda arguments: json.dumps(javascript(arguments), separators=(",", ":"), ensure_ascii=False)  # noqa: E731
    return _chat(dialogue, "", compact, lambda call_id: call_id)


def plain_chat(dialogue: Dialogue) -> Conversation:
    """A client that knows no reasoning: most of them."""
    return _chat(dialogue, None, lambda arguments: arguments, lambda call_id: call_id)


def _chat(
    dialogue: Dialogue, join: str | None, spell: Callable[[str], str], spell_id: Callable[[str], str]
) -> Conversation:
    messages: list[dict[str, Any]] = [{"role": "system", "content": dialogue.system}]
    for kind, what in dialogue.entries:
        if kind in ("user", "system"):
            messages.append({"role": kind, "content": what})
        elif kind == "results":
            messages += [{"role": "tool", "tool_call_id": spell_id(call_id), "content": text} for call_id, text in what]
        else:
            message: dict[str, Any] = {
                "role": "assistant",
                "content": "".join(b.text for b in what if b.kind == "text"),
            }
            thoughts = [block.text for block in what if block.kind == "reasoning"]
            if thoughts and join is not None:
                message["reasoning_content"] = join.join(thoughts)
            calls = [
                {
                    "id": spell_id(b.call_id),
                    "type": "function",
                    "function": {"name": b.name, "arguments": spell(b.text)},
                }
                for b in what
                if b.kind == "tool_use"
            ]
            if calls:
                message["tool_calls"] = calls
            messages.append(message)
    tools = [{"type": "function", "function": {"name": t["name"], "parameters": t["schema"]}} for t in dialogue.tools]
    body = {"model": "m", "messages": messages, "tools": tools}
    return Chat().parse(json.dumps(body).encode(), JSON).conversations[0]


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
