"""Converts content parts (text, images, audio, files) to parts of the conversation."""

from collections.abc import Sequence
from typing import Any, Literal

from schemas.conversation import Media, Reasoning, Text
from schemas.errors import Invalid
from services.frontend.apis.chat import wire
from services.frontend.apis.shared.content import (
    base64_size,
    check_url,
    data_url,
    file_size,
    linked_image,
    linked_media,
)
from services.frontend.apis.shared.decode import tags_of
from services.frontend.apis.shared.unknown_parts import (
    UnknownParts,
    elements,
    is_unknown_question,
    members,
    with_member,
)
from services.frontend.content.pdf_document import make_document

_KNOWN = frozenset(tags_of(wire.Part))


def without_unknown_parts(body: bytes, unknown: UnknownParts) -> bytes:
    """A request with unknown content parts replaced."""
    messages = elements(members(body).get("messages"))
    replaced = [unknown.replace_in(message, "content", _KNOWN) for message in messages]
    if messages and is_unknown_question(messages[-1], _KNOWN):
        replaced[-1] = messages[-1]
    return bytes(with_member(body, "messages", replaced))


def content_parts(content: wire.Content | None, field_path: str) -> list[Text | Media | Reasoning]:
    """The parts of a message's content, in order. Empty text is left out. Raises Invalid for a file
    reference."""
    if content is None:
        return []
    if isinstance(content, str):
        return [*_texts(content)]
    parts: list[Text | Media | Reasoning] = []
    for index, part in enumerate(content):
        parts += _parts_of(part, f"{field_path}[{index}]")
    return parts


def _parts_of(part: wire.Part | str, field_path: str) -> Sequence[Text | Media | Reasoning]:
    """The parts that one part of a request becomes: one, or none for empty text."""
    match part:
        case str(text) | wire.TextPart(text=text) | wire.RefusalPart(refusal=text):
            return _texts(text)
        case wire.ThinkingPart():
            thought = thinking_text(part.thinking)
            return [Reasoning(thought)] if thought else []
        case wire.FilePart():
            return [_file(part.file, field_path)]
        case wire.AudioPart():
            return [_audio(part.input_audio)]
        case wire.ImagePart():
            return [_image(part.image_url, f"{field_path}.image_url")]
        case wire.VideoPart():
            return [_linked("document", part.video_url, f"{field_path}.video_url", "video")]
        case wire.AudioUrlPart():
            return [_linked("audio", part.audio_url, f"{field_path}.audio_url")]


def _texts(text: str) -> list[Text]:
    return [Text(text)] if text else []


def _audio(audio: wire.ChatInputAudio) -> Media:
    media_type = f"audio/{audio.format}" if audio.format else ""
    return Media("audio", media_type=media_type, size_bytes=base64_size(audio.data))


def thinking_text(thinking: Any) -> str:
    """Reasoning from a string or Mistral's list of text parts; "" for anything else."""
    if isinstance(thinking, str):
        return thinking
    if not isinstance(thinking, list):
        return ""
    texts = [item.get("text") if isinstance(item, dict) else item for item in thinking]
    return "".join(text for text in texts if isinstance(text, str))


def _file(file: wire.File, field_path: str) -> Media:
    if file.file_data is None:
        param = f"{field_path}.file"
        message = (
            f"Invalid '{param}': file references are not supported by this server; send the "
            "content itself."
        )
        raise Invalid(message, param=param, code="unsupported_value")
    media_type, data = data_url(file.file_data) or ("", file.file_data)
    size = file_size(data, f"{field_path}.file.file_data")
    head = f"Title: {file.filename}\n\n" if file.filename else ""
    return make_document(media_type, data, size, file.filename, head)


def _image(image: str | wire.Url, field_path: str) -> Media:
    if isinstance(image, str):
        return linked_image(image, field_path)
    return linked_image(image.url, f"{field_path}.url")


def _linked(
    kind: Literal["document", "audio"],
    location: str | wire.Url,
    field_path: str,
    media_type: str = "",
) -> Media:
    url = location if isinstance(location, str) else location.url
    if data_url(url) is None:
        check_url(url, field_path)
    return linked_media(kind, url, media_type)
