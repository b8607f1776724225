"""Identifies the session of a conversation by two facts: its client's id, and the first question.

| key              | made of                                | distinguishes                        |
|------------------|----------------------------------------|--------------------------------------|
| `placement_key`  | the agent's id, else the question      | sessions of all tenants              |
| `helper_key`     | a helper's own id                      | the same: what its helpers have      |
| `tenant_key`     | the tenant; an id, else the question;  | sessions of one tenant               |
|                  | the adapter                            |                                      |
| `session_key`    | the tenant, the id, the question and   | prompts that may extend each other   |
|                  | the adapter                            |                                      |
| `session_digest` | the id                                 | sessions of a ledger's look-alikes   |

The APIs find the ids that a client sends of its session (headers, user ids, cache keys). Frontends
of different releases agree on `placement_key`, and stored ledger entries have `session_digest`:
their values never change.
"""

import hashlib
from typing import TypeAlias

import xxhash

from schemas.conversation import Conversation, Text

SessionKey: TypeAlias = tuple[str | None, str | None, str]
"""Tenant, the client's session id, hash of the first question."""
_DIGEST_BYTES = 8


def first_question(conversation: Conversation) -> str:
    """The text of the user's first message; "" where there is none."""
    for message in conversation.messages:
        if message.role == "user":
            return "\n".join(part.text for part in message.parts if isinstance(part, Text))
    return ""


def placement_key(conversation: Conversation) -> str:
    """A key of the session. A helper has the key of the agent that started it, so that both get the
    same model."""
    session = conversation.client.parent or conversation.client.session
    return _hash(first_question(conversation) if session is None else session)


def helper_key(conversation: Conversation) -> str | None:
    """The `placement_key` that the helpers of this helper have; None if the session is not a
    helper's."""
    client = conversation.client
    if client.parent is None or client.session is None:
        return None
    return _hash(client.session)


def tenant_key(conversation: Conversation, session: str | None) -> str:
    """A key of a session of the conversation's tenant.

    `session`: the client's id of it; None: the session has none.
    """
    tenant = conversation.client.tenant or ""
    name = first_question(conversation) if session is None else f"id\0{session}"
    return _hash(_with_adapter(conversation, f"{tenant}\0{name}"))


def session_key(conversation: Conversation) -> SessionKey:
    """A key that prompts share which may begin with one another. Agents send the requests of their
    helpers under the same session id, with other questions."""
    client = conversation.client
    question = _with_adapter(conversation, first_question(conversation))
    return client.tenant, client.session, _hash(question)


def session_digest(session: str | None) -> bytes:
    """A client's session id as ledger entries have it; empty where there is none."""
    if not session:
        return b""
    data = f"session\0{session}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _with_adapter(conversation: Conversation, text: str) -> str:
    """A text that differs for each adapter: what one has computed is of no use to another."""
    adapter = conversation.adapter
    return f"adapter\0{adapter}\0{text}" if adapter else text


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
