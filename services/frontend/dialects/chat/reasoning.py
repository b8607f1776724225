"""Reasoning of earlier turns, in whichever of the ecosystem's fields a client sends it back (apis.md C.4).

The first of these that holds something counts; the others say the same again, with less:

    reasoning_details[]   OpenRouter's; ours (`format` of `DETAILS`) hold seals, and say before which call each stood
    thinking_blocks[]     LiteLLM's: Messages' blocks with their signatures
    reasoning_content     a string (most servers), or Dynamo's segments: one before each call, one behind the last
    reasoning, reasoning_text
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from schemas.conversation import Reasoning
from services.frontend.dialects.chat import wire
from services.frontend.dialects.chat.content import thinking_text

DETAILS = "turnwire-v1"
"""`format` of details that this server made."""
_UNSAFE = re.compile(r"[^A-Za-z0-9]")


class Thought(Struct, frozen=True):
    """Reasoning, and before which of the message's calls it stands; None: behind the last one."""

    reasoning: Reasoning
    call: int | None = 0


def thoughts(message: wire.Message, call_ids: Sequence[str]) -> list[Thought]:
    """The reasoning of an assistant's message, in order. Whatever cannot be read is left out."""
    details = message.reasoning_details if isinstance(message.reasoning_details, list) else []
    found = _own_details(details, call_ids) or _details(details) or _blocks(message.thinking_blocks)
    return found or _text(message, len(call_ids))


def _own_details(details: list[Any], call_ids: Sequence[str]) -> list[Thought]:
    # Clients spell call ids in their own way (OpenClaw takes the underscores out), but send details back untouched.
    places = {_UNSAFE.sub("", call_id): place for place, call_id in enumerate(call_ids)}
    found = []
    for detail in details:
        if isinstance(detail, dict) and detail.get("format") == DETAILS and _said(detail, "data"):
            place = places.get(_UNSAFE.sub("", str(detail.get("id"))))
            found.append(Thought(Reasoning(None, detail["data"]), place if call_ids else 0))
    return found


def _details(details: list[Any]) -> list[Thought]:
    found = []
    for detail in details:
        if not isinstance(detail, dict) or detail.get("format") == DETAILS:
            continue
        text, seal = _said(detail, "text"), _said(detail, "signature") or _said(detail, "data")
        summary = _said(detail, "summary")
        if text or summary:
            found.append(Thought(Reasoning(text, seal, [summary] if summary else [])))
    return found if any(thought.reasoning.text for thought in found) else []


def _blocks(blocks: Any) -> list[Thought]:
    found = []
    for block in blocks if isinstance(blocks, list) else []:
        if isinstance(block, dict):
            text, seal = _said(block, "thinking"), _said(block, "signature") or _said(block, "data")
            if text or seal:
                found.append(Thought(Reasoning(text, seal)))
    return found


def _text(message: wire.Message, calls: int) -> list[Thought]:
    segments = message.reasoning_content
    if isinstance(segments, list) and calls and len(segments) == calls + 1:
        places = [*range(calls), None]
        return [
            Thought(Reasoning(segment), place)
            for segment, place in zip(segments, places, strict=True)
            if isinstance(segment, str) and segment
        ]
    for given in (segments, message.reasoning, message.reasoning_text, message.reasoning_details):
        text = thinking_text(given)
        if text:
            return [Thought(Reasoning(text))]
    return []


def _said(holder: dict[str, Any], name: str) -> str | None:
    value = holder.get(name)
    return value if isinstance(value, str) and value else None
