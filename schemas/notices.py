"""Notices among frontends: sessions placed, responses and rollouts changed, usage by key."""

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct


class SessionPlaced(Struct, frozen=True, omit_defaults=True, tag="place", tag_field="action"):
    """Fan-out among frontends: one of the models that share a name was chosen for a session."""

    id: str
    """A hash of the session."""
    name: str
    """The name that several models share."""
    model: str
    """The model that serves the session under `name`."""
    root: str = ""
    """A hash of the session that a helper's tree of agents began with, and is placed by; "" for
    sessions that are not a helper's."""


class PromptSeen(Struct, frozen=True, omit_defaults=True, tag="place", tag_field="action"):
    """Fan-out among frontends: a prompt was made, with which later ones may be compared."""

    id: str
    """A hash of the turn."""
    model: str
    preprocessor: str
    """The process that made the prompt, and can compare others with it."""
    prompt_tokens: int


class ResponseDeleted(Struct, frozen=True, tag="forget", tag_field="action"):
    """Fan-out among frontends: a stored response was deleted."""

    id: str


class ResponseCancelled(Struct, frozen=True, tag="cancel", tag_field="action"):
    """Fan-out among frontends: a stored response was cancelled, wherever it runs."""

    id: str


class RolloutChanged(Struct, frozen=True, omit_defaults=True, tag="rollout", tag_field="action"):
    """Fan-out among frontends: what is stored of a rollout has changed."""

    place: str
    """Names the rollout without its id, which is a key: every user of the bus may read this."""
    cancels: Literal["", "aborted", "restarted", "deleted"] = ""
    """Why the open turns of a run are cancelled; "": they are not."""
    run: int = 0
    """That run."""


class UsageRequested(Struct, frozen=True, omit_defaults=True, tag="usage", tag_field="action"):
    """Fan-out among frontends: asks each for its counts of a key."""

    id: str
    """Names the request."""
    tenant: str | None = None
    """The holder of the key; None: of a server without keys."""
    every: bool = False
    """All holders are asked for, whatever `tenant` is."""


class UsageReported(Struct, frozen=True, omit_defaults=True, tag="used", tag_field="action"):
    """Fan-out among frontends: the answer of one to `UsageRequested`."""

    id: str
    """Names the request."""
    frontend: str
    since: float
    """When this frontend began to count: Unix time in seconds."""
    models: dict[str, dict[str, int]] = {}
    """Model → what was used: `turns`, `prompt_tokens` …"""
    keys: dict[str, dict[str, dict[str, int]]] | None = None
    """Holder, "" without keys → model → what was used. None where one holder was asked for, and of
    older releases."""


ResponseNotice: TypeAlias = ResponseDeleted | ResponseCancelled


UsageNotice: TypeAlias = UsageRequested | UsageReported


FrontendNotice: TypeAlias = (
    SessionPlaced | PromptSeen | ResponseNotice | RolloutChanged | UsageNotice
)


class _NoticeHead(Struct):
    prompt_tokens: int = 0


_decode_head = msgspec.json.Decoder(_NoticeHead).decode


_decode_prompt = msgspec.json.Decoder(PromptSeen).decode


_OtherNotice: TypeAlias = SessionPlaced | ResponseNotice | RolloutChanged | UsageNotice


_other_notices: msgspec.json.Decoder[_OtherNotice] = msgspec.json.Decoder(_OtherNotice)


def decode_notice(data: bytes) -> FrontendNotice:
    """Decodes a notice. On the bus both a session and a prompt have the action `place`, and only a
    prompt has tokens: so frontends of all releases with this protocol write and read them.

    Raises msgspec.DecodeError and msgspec.ValidationError.
    """
    if _decode_head(data).prompt_tokens:
        return _decode_prompt(data)
    return _other_notices.decode(data)
