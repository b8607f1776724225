"""Reads a client's headers: which agent sends a request, its session, the session of the agent that
started it, and whether anybody waits; and switches.

`docs/clients.md` has a table of them. Everything here is what a client claims: it selects among the
caller's own turns and orders queues, and gives no rights.
"""

import re
from collections.abc import Mapping
from typing import Literal

import xxhash
from msgspec.structs import replace

from schemas.conversation import Client, Conversation, Text

MAX_CHARS = 200
_SESSION = (
    "x-claude-code-session-id",
    "thread-id",  # before session-id: Codex' sub-agents send the session-id of the first agent
    *("session-id", "conversation_id", "session_id"),
    *("x-session-id", "x-session-affinity", "x-dynamo-session-id"),
)
_PARENT = (
    "x-codex-parent-thread-id",
    "x-parent-session-id",
    "x-claude-code-parent-session-id",
    "x-dynamo-parent-session-id",
)
_AGENT, _PARENT_AGENT = "x-claude-code-agent-id", "x-claude-code-parent-agent-id"
_CLASSES = ("x-claude-code-request-class", "x-openai-subagent")
_BACKGROUND = ("auxiliary", "memory_consolidation")
"""Values of `_CLASSES`: titles, classifiers and recaps of Claude Code; memories of Codex."""
_HASH = re.compile("#[0-9a-f]{32}")
_TITLE = re.compile(r".{0,100}\btitle generator\b", re.IGNORECASE)


def with_client(
    conversation: Conversation,
    headers: Mapping[str, str],
    session: str | None = None,
    *,
    compare: str | None = None,
) -> Conversation:
    """Returns the conversation of a request with its client.

    Args:
        session: the id in the body, for clients that send none in a header.
        compare: as in `Client`.
    """
    sent = _first_values(headers)
    first = next((sent[header] for header in _SESSION if header in sent), session)
    name, parent = (
        _bounded(first),
        _bounded(next((sent[header] for header in _PARENT if header in sent), None)),
    )
    if name and (agent := _bounded(sent.get(_AGENT))):
        # Claude Code's sub-agents send the id of the session, and an id of their own.
        caller = _bounded(sent.get(_PARENT_AGENT))
        name, parent = f"{name}/{agent}", f"{name}/{caller}" if caller else name
    if name is None or parent == name:
        parent = None
    kind: Literal["main", "helper", "background"] = "main" if parent is None else "helper"
    if any(sent.get(header) in _BACKGROUND for header in _CLASSES) or (
        name and _wants_title(conversation)
    ):
        kind = "background"
    client = Client(name, sent.get("user-agent"), parent=parent, kind=kind, compare=compare)
    return replace(conversation, client=client)


def header_flag(headers: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns the boolean in a header."""
    return default if name not in headers else headers[name].lower() in ("1", "true")


def _first_values(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the first value that is not empty of each header, by its name in lower case."""
    values: dict[str, str] = {}
    for name, value in headers.items():  # repeated headers come one by one
        if value:
            values.setdefault(name.lower(), value)
    return values


def _wants_title(conversation: Conversation) -> bool:
    """Whether the request is for a title of the session: opencode, and Claude Code unless it is set
    otherwise, send one beside each first turn and do not say so in a header."""
    if conversation.tools or any(message.role == "assistant" for message in conversation.messages):
        return False
    schema = conversation.format.schema if conversation.format is not None else None
    if schema is not None:
        members = schema.get("properties")
        return isinstance(members, dict) and list(members) == ["title"]
    first = [
        part
        for message in conversation.messages[:1]
        if message.role != "user"
        for part in message.parts
    ]
    return any(
        _TITLE.match(part.text) for part in [*conversation.system, *first] if isinstance(part, Text)
    )


def _bounded(value: str | None) -> str | None:
    """Returns an id as it is if it is short, printable and unlike a hash, else its hash."""
    if not value:
        return None
    if len(value) <= MAX_CHARS and value.isprintable() and not _HASH.fullmatch(value):
        return value
    return f"#{xxhash.xxh3_128_hexdigest(value.encode('utf-8', 'surrogatepass'))}"
