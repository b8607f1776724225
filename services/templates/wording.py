"""Writes results, media and instructions inside a conversation as text, where chat templates have
no place for them.

Models see these texts: a change of one invalidates every cached prefix.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from schemas.conversation import Media, Result, Text, ToolReference, ToolSpec
from services.templates.tools import tool_definition

JOIN = "\n"
"""Joins the text blocks of one message, as other servers do."""
ERROR_PREFIX = "[error] "
IMAGE_SLOT = "turnwire image "
"""Begins the slot of an image."""
_SLOT = re.compile(IMAGE_SLOT + "([0-9a-f]{40}) here")


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A call in the form most widely trained, for templates and families without one of their
    own."""
    return (
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n"
        "</tool_call>"
    )


def instruction_text(text: str) -> str:
    """An instruction inside the conversation, for templates that have no place for one.

    Claude Code uses the same tags for models without mid-conversation instructions.
    """
    return f"<system-reminder>\n{text}\n</system-reminder>"


def response_text(text: str) -> str:
    """A result for templates that have no role for one."""
    return f"<tool_response>\n{text}\n</tool_response>"


def media_text(media: Media) -> str:
    """The text in the place of media: a slot, which `images.show_images` fills, or a note."""
    return image_slot(media.hash) if media.hash else media_note(media)


def media_note(media: Media) -> str:
    """A note in the place of media, which this model cannot see."""
    note: str = media.kind
    if media.title:
        note += f' "{media.title}"'
    facts = [fact for fact in (media.media_type, _size(media.size_bytes)) if fact]
    if facts:
        note += f": {', '.join(facts)}"
    note += "; not shown to this model"
    if media.problem:
        note += f": {media.problem}"
    return f"[{note}]"


def image_slot(image: str) -> str:
    """The slot of an image with this hash: a text that the image replaces. Templates and JSON do
    not change it, and it joins with no control token."""
    return f"{IMAGE_SLOT}{image} here"


def image_slots(text: str) -> Iterator[re.Match[str]]:
    """The slots in a text, in order; group 1 is the hash."""
    return _SLOT.finditer(text)


def join_blocks(texts: Iterable[str]) -> str:
    """The texts of one message's blocks as one text. Images are separated from texts as the
    template does it."""
    joined: list[str] = []
    for text in texts:
        if joined and not (_SLOT.fullmatch(text) or _SLOT.fullmatch(joined[-1])):
            joined.append(JOIN)
        joined.append(text)
    return "".join(joined)


def result_text(result: Result, tools: Sequence[ToolSpec]) -> str:
    """A tool's result as text. A tool that it loads is defined here, in the form of the tool
    list."""
    pieces = []
    for part in result.parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, Media):
            pieces.append(media_text(part))
        else:
            pieces.append(_reference_text(part, tools))
    return (ERROR_PREFIX if result.is_error else "") + join_blocks(pieces)


def _reference_text(reference: ToolReference, tools: Sequence[ToolSpec]) -> str:
    for tool in tools:
        if tool.rendered_name == reference.name:
            return json.dumps(tool_definition(tool), ensure_ascii=False)
    return f"[tool: {reference.name}]"


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return ""
    if size_bytes < 1024:
        return f"{size_bytes} bytes"
    if size_bytes < 1024 * 1024:
        return f"{size_bytes / 1024:.0f} KB"
    return f"{size_bytes / (1024 * 1024):.1f} MB"
