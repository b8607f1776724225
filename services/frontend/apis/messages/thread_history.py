"""Completes requests that continue a message thread with what the thread holds, and makes the
record of their replies. Pure.

A thread is a chain of stored replies. The first has the thread's head: the members of the request
that later ones need not repeat. Each has the messages of its own request, and the reply as the
client would send it back. So a request that continues a thread makes the same conversation as one
with the whole history.
"""

import re
from collections.abc import Sequence
from itertools import chain

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.errors import Invalid, NotFound
from services.frontend.apis.messages import wire, wire_answers
from services.frontend.apis.messages.bodies import DecodedBody, MessagesBodies
from services.frontend.apis.messages.tools import MessagesTools
from services.frontend.apis.shared.field_types import NULL
from services.frontend.stored.record import StoredReply

PREVIOUS = "thread.previous_message_id"
_BILLING = re.compile(r"\s*x-anthropic-billing-header:", re.IGNORECASE)
"""Begins a block of Claude Code that changes between requests."""


class ThreadHead(Struct):
    """The members that hold for a whole thread."""

    model: str
    system: str | list[wire.TextBlock] | None = None
    tools: Raw = NULL


class ThreadTurn(Struct, frozen=True):
    """The part that one request adds to its thread."""

    head: Raw
    messages: list[Raw]
    """The request's own messages."""
    previous: StoredReply | None
    """The reply that it continues; None: it begins the thread."""

    def record(
        self, answer: wire_answers.MessagesAnswer, *, created: float, tenant: str | None
    ) -> StoredReply:
        """The record of the reply. A summary replaces everything before it, as in the client's
        history."""
        reply = Raw(_encode({"role": "assistant", "content": answer.content}))
        record = StoredReply(
            id=answer.id, created=created, tenant=tenant, messages=[*self.messages, reply]
        )
        if is_summary(answer):
            return replace(record, messages=[reply], head=self.head)
        if self.previous is None:
            return replace(record, head=self.head)
        return replace(record, previous=self.previous.id)


def with_history(
    request: DecodedBody, replies: Sequence[StoredReply], bodies: MessagesBodies
) -> DecodedBody:
    """The whole request, with the head and the messages of the thread that it continues.

    `replies`: those of the thread, oldest first; empty: it continues none. Raises Invalid for a
    member that differs from the thread's, NotFound for replies of another release that cannot be
    read.
    """
    if not replies:
        return request
    body = request.body
    try:
        head = _head.decode(replies[0].head)
        declared = bodies.tools(bytes(head.tools))
        messages = list(map(_message.decode, held_messages(replies)))
    except (msgspec.DecodeError, Invalid):
        raise not_found() from None
    _check_head(request, head, declared)
    whole = replace(
        body,
        messages=[*messages, *body.messages],
        system=head.system,
        tools=declared.wire_tools,
    )
    return replace(request, body=whole, declared=declared, held=len(messages))


def not_found() -> NotFound:
    """The error for a thread that is not stored; on its code the SDK sends the whole
    conversation."""
    return NotFound(
        "No thread state was found for the requested `previous_message_id`.",
        param=PREVIOUS,
        code="thread_not_found",
    )


def held_messages(replies: Sequence[StoredReply]) -> list[Raw]:
    """The messages of a thread, in order. `replies`: as for `with_history`."""
    return [*chain.from_iterable(reply.messages for reply in replies)]


def thread_turn(request: DecodedBody, replies: Sequence[StoredReply]) -> ThreadTurn | None:
    """The part that a whole request adds to its thread; None if it has none. `replies`: as for
    `with_history`."""
    body = request.body
    if body.thread is None:
        return None
    messages = [Raw(_encode(message)) for message in body.messages[request.held :]]
    if replies:
        return ThreadTurn(replies[0].head, messages, replies[-1])
    tools = Raw(_encode(request.declared.wire_tools))
    head = ThreadHead(body.model, body.system, tools)
    return ThreadTurn(Raw(_encode(head)), messages, None)


def is_summary(answer: wire_answers.MessagesAnswer) -> bool:
    """Whether an answer is the block of a request with `compaction`."""
    return any(
        isinstance(block, wire_answers.CompactionContent) and block.signature is not msgspec.UNSET
        for block in answer.content
    )


def _check_head(request: DecodedBody, head: ThreadHead, declared: MessagesTools) -> None:
    """Raises Invalid if the request has another model, system prompt or list of tools than its
    thread; without the latter two it has the thread's."""
    body = request.body
    differing: list[str] = []
    if body.model != head.model:
        differing.append("model")
    system = system_texts(body.system)
    if system and system != system_texts(head.system):
        differing.append("system")
    if body.tools and request.declared != replace(declared, wire_tools=body.tools):
        differing.append("tools")
    if differing:
        raise Invalid(
            "The request does not match the one that created this Thread; differing field(s): "
            f"{', '.join(differing)}. Leave out `system` and `tools`, or send the full "
            'conversation with `thread: {"type": "create"}`.',
            param=differing[0],
            code="thread_fingerprint_mismatch",
        )


def system_texts(system: str | list[wire.TextBlock] | None) -> list[str]:
    """The texts of a system prompt, without the block of Claude Code that changes between
    requests."""
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    return [text for text in texts if text and not _BILLING.match(text)]


_encode = msgspec.json.Encoder().encode
_head = msgspec.json.Decoder(ThreadHead)
_message = msgspec.json.Decoder(wire.MessagesMessage)
