"""Converts content parts (text, images, audio, files) to parts of the conversation."""

from collections.abc import Sequence
from typing import Any

from schemas.conversation import Media, Reasoning, Text
from schemas.errors import Invalid
from services.frontend.apis.chat import wire
from services.frontend.apis.shared.content import (
    base64_size,
    data_url,
    file_size,
    linked_image,
    linked_media,
)
from services.frontend.media.pdf_document import document


def content_parts(content: wire.Content | None, path: str) -> list[Text | Media | Reasoning]:
    """The parts of a message's content, in order. Empty text is left out. Raises Invalid for a file
    reference."""
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
        media_type = f"audio/{audio.format}" if audio.format else ""
        return [Media("audio", media_type=media_type, size_bytes=base64_size(audio.data))]
    if isinstance(part, wire.ImagePart):
        return [_image(part.image_url, f"{path}.image_url")]
    if isinstance(part, wire.VideoPart):
        return [linked_media("document", _url(part.video_url), "video")]
    return [linked_media("audio", _url(part.audio_url))]


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
    media_type, data = data_url(file.file_data) or ("", file.file_data)
    size = file_size(data, f"{path}.file.file_data")
    head = f"Title: {file.filename}\n\n" if file.filename else ""
    return document(media_type, data, size, file.filename, head)


def _image(image: str | wire.Url, path: str) -> Media:
    url, place = (image, path) if isinstance(image, str) else (image.url, f"{path}.url")
    return linked_image(url, place)


def _url(location: str | wire.Url) -> str:
    return location if isinstance(location, str) else location.url
