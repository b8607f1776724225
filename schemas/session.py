"""Identifies the session of a conversation, for placement, the ledger and the comparison of its
prompts.

What a client says of its session (headers, user ids, cache keys) is found by the APIs; here it
becomes keys. Frontends of different releases agree on `placement_key`, and stored ledger entries
have `session_digest`: their values never change.
"""

import hashlib
from typing import TypeAlias

import xxhash

from schemas.conversation import Conversation, Text

SessionKey: TypeAlias = tuple[str | None, str | None, str]
"""Tenant, the client's session id, hash of the first question."""
_DIGEST_BYTES = 8


def first_question(conversation: Conversation) -> str:
    """Returns the text of the user's first message; "" where there is none."""
    question = next((message for message in conversation.messages if message.role == "user"), None)
    parts = question.parts if question is not None else []
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def placement_key(conversation: Conversation) -> str:
    """Returns a key of the session among all tenants: of its client's id, else of its first
    question. A helper has the key of the agent that started it, so that both get the same model."""
    session = conversation.client.parent or conversation.client.session
    return _hash(first_question(conversation) if session is None else session)


def helper_key(conversation: Conversation) -> str | None:
    """Returns the `placement_key` that the helpers of this helper have; None if the session is not
    a helper's."""
    client = conversation.client
    return None if client.parent is None or client.session is None else _hash(client.session)


def tenant_key(conversation: Conversation, session: str | None) -> str:
    """Returns a key of a session, or without one of the first question, that no other tenant's
    session has."""
    told = first_question(conversation) if session is None else f"id\0{session}"
    return _hash(f"{conversation.client.tenant or ''}\0{told}")


def session_key(conversation: Conversation) -> SessionKey:
    """Returns a key that prompts share which may begin with one another: those of a tenant's
    session with the same first question, since agents send the requests of their helpers under the
    same session id."""
    return (
        conversation.client.tenant,
        conversation.client.session,
        _hash(first_question(conversation)),
    )


def session_digest(session: str | None) -> bytes:
    """Returns a client's session id as ledger entries have it; empty where there is none."""
    if not session:
        return b""
    data = f"session\0{session}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
