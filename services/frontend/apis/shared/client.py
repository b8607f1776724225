"""Reads a client's headers: which agent sends a request, its session, the session of the agent that
started it, and whether anybody waits; and switches.

`docs/clients.md` has a table of them. Everything here is what a client claims: it selects among the
caller's own turns and orders queues, and gives no rights.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import xxhash
from msgspec.structs import replace

from schemas.conversation import Client, Conversation, Part, Text

Headers: TypeAlias = Mapping[str, str]
"""The headers of a request, which are looked up by lower-case names."""
MAX_CHARS = 200
_SESSION = (
    "x-claude-code-session-id",
    "thread-id",  # before session-id: Codex' sub-agents send the session-id of the first agent
    "session-id",
    "conversation_id",
    "session_id",
    "x-session-id",
    "x-session-affinity",
    "x-dynamo-session-id",
)
_PARENT = (
    "x-codex-parent-thread-id",
    "x-parent-session-id",
    "x-claude-code-parent-session-id",
    "x-dynamo-parent-session-id",
)
_AGENT = "x-claude-code-agent-id"
_PARENT_AGENT = "x-claude-code-parent-agent-id"
_CLASSES = ("x-claude-code-request-class", "x-openai-subagent")
_BACKGROUND = ("auxiliary", "memory_consolidation")
"""Values of `_CLASSES`: titles, classifiers and recaps of Claude Code; memories of Codex."""
_HASH = re.compile("#[0-9a-f]{32}")
_TITLE = re.compile(r".{0,100}\btitle generator\b", re.IGNORECASE)


def with_client(
    conversation: Conversation,
    headers: Headers,
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
    name, parent = _session_and_parent(sent, session)
    kind: Literal["main", "helper", "background"] = "main" if parent is None else "helper"
    is_background = any(sent.get(header) in _BACKGROUND for header in _CLASSES)
    if is_background or (name and _wants_title(conversation)):
        kind = "background"
    client = Client(name, sent.get("user-agent"), parent=parent, kind=kind, compare=compare)
    return replace(conversation, client=client)


def _session_and_parent(
    sent: Mapping[str, str], session: str | None
) -> tuple[str | None, str | None]:
    """The ids of a request's session and of its parent's, if it has one."""
    name = _bounded(_first_of(sent, _SESSION) or session)
    parent = _bounded(_first_of(sent, _PARENT))
    agent = _bounded(sent.get(_AGENT))
    if name and agent:
        # Claude Code's sub-agents send the id of the session, and an id of their own.
        caller = _bounded(sent.get(_PARENT_AGENT))
        parent = f"{name}/{caller}" if caller else name
        name = f"{name}/{agent}"
    if name is None or parent == name:
        parent = None
    return name, parent


def header_flag(headers: Headers, name: str, default: bool) -> bool:
    """Returns the boolean in a header."""
    return default if name not in headers else headers[name].lower() in ("1", "true")


def _first_of(sent: Mapping[str, str], headers: Sequence[str]) -> str | None:
    """The value of the first of these headers that was sent."""
    for header in headers:
        if header in sent:
            return sent[header]
    return None


def _first_values(headers: Headers) -> dict[str, str]:
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
    parts: list[Part] = [*conversation.system]
    for message in conversation.messages[:1]:
        if message.role != "user":
            parts += message.parts
    texts = (part.text for part in parts if isinstance(part, Text))
    return any(_TITLE.match(text) for text in texts)


def _bounded(value: str | None) -> str | None:
    """Returns an id as it is if it is short, printable and unlike a hash, else its hash."""
    if not value:
        return None
    if len(value) <= MAX_CHARS and value.isprintable() and not _HASH.fullmatch(value):
        return value
    return f"#{xxhash.xxh3_128_hexdigest(value.encode('utf-8', 'surrogatepass'))}"
