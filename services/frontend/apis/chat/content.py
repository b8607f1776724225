"""Content parts as parts of the conversation: text, images, audio and files."""

import re
from collections.abc import Sequence
from typing import Any, Literal

from schemas.conversation import Media, Reasoning, Text
from schemas.errors import Invalid
from services.frontend.apis.chat import wire

_DATA_URL = re.compile(r"data:(?P<type>[^;,]*)(?:;[^;,]*)*?(?P<base64>;base64)?,", re.IGNORECASE)
_MAX_HEAD = 1024
"""Characters of a data URL before its data."""


def content_parts(content: wire.Content | None, path: str) -> list[Text | Media | Reasoning]:
    """The parts of a message's content, in order. Empty text is left out. Raises Invalid for a file reference."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts: list[Text | Media | Reasoning] = []
    for index, part in enumerate(content):
        parts += _part(part, f"{path}[{index}]")
    return parts


def _part(part: wire.Part | str, path: str) -> Sequence[Text | Media | Reasoning]:
    if isinstance(part, str):
        return [Text(part)] if part else []
    if isinstance(part, wire.TextPart):
        return [Text(part.text)] if part.text else []
    if isinstance(part, wire.RefusalPart):
        return [Text(part.refusal)] if part.refusal else []
    if isinstance(part, wire.ThinkingPart):
        thought = thinking_text(part.thinking)
        return [Reasoning(thought)] if thought else []
    if isinstance(part, wire.FilePart):
        return [_file(part.file, path)]
    if isinstance(part, wire.AudioPart):
        audio = part.input_audio
        return [
            Media("audio", media_type=f"audio/{audio.format}" if audio.format else "", size_bytes=_size(audio.data))
        ]
    if isinstance(part, wire.ImagePart):
        return [_located("image", part.image_url)]
    if isinstance(part, wire.VideoPart):
        return [_located("document", part.video_url, "video")]
    return [_located("audio", part.audio_url)]


def thinking_text(thinking: Any) -> str:
    """Reasoning from a string or Mistral's list of text parts; "" for anything else."""
    if isinstance(thinking, str):
        return thinking
    if not isinstance(thinking, list):
        return ""
    texts = [item.get("text") if isinstance(item, dict) else item for item in thinking]
    return "".join(text for text in texts if isinstance(text, str))


def _file(file: wire.File, path: str) -> Media:
    if file.file_data is None:
        param = f"{path}.file"
        message = f"Invalid '{param}': file references are not supported by this server; send the content itself."
        raise Invalid(message, param=param, code="unsupported_value")
    media = _located("document", file.file_data, title=file.filename)
    if media.url is None:
        return media
    return Media("document", size_bytes=_size(file.file_data), title=file.filename)


def _located(
    kind: Literal["image", "document", "audio"],
    given: str | wire.Url,
    media_type: str = "",
    title: str | None = None,
) -> Media:
    url = given if isinstance(given, str) else given.url
    data = _DATA_URL.match(url, 0, _MAX_HEAD)
    if data is None:
        return Media(kind, media_type=media_type, url=url, title=title)
    size = _size(url, data.end()) if data["base64"] else len(url) - data.end()
    return Media(kind, media_type=data["type"] or media_type, size_bytes=size, title=title)


def _size(base64: str, start: int = 0) -> int:
    characters = len(base64) - start
    return max(0, characters * 3 // 4 - base64.count("=", max(start, len(base64) - 2)))
