"""Content parts as parts of the one conversation: what a model is told of text, images, files and sounds."""

import base64
import binascii
from collections.abc import Sequence

from schemas.conversation import Media, Text
from services.frontend.dialects.responses import wire
from services.frontend.dialects.responses.wording import refuse

_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/x-yaml", "application/toml")
_SUFFIXES = {"pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "json": "application/json"}
_NO_FILES = "names a file, and this server keeps none; send its content"


def parts(content: str | Sequence[wire.Part], place: str) -> list[Text | Media]:
    """What was said. A string and its one text part are the same; empty text is no part. Raises Invalid for a
    reference to a stored file."""
    if isinstance(content, str):
        return [Text(content)] if content else []
    out: list[Text | Media] = []
    for index, part in enumerate(content):
        if isinstance(part, wire.InputText | wire.OutputText | wire.PlainText):
            if part.text:
                out.append(Text(part.text))
        elif isinstance(part, wire.Refusal):
            if part.refusal:
                out.append(Text(part.refusal))
        elif isinstance(part, wire.InputFile):
            out.append(_file(part, f"{place}[{index}]"))
        elif isinstance(part, wire.InputAudio):
            out.append(Media("audio"))
        else:
            out.append(image(part, f"{place}[{index}]"))
    return out


def image(part: wire.InputImage | wire.ComputerScreenshot, place: str) -> Media:
    """An image; of a data URL only what it is goes any further. Raises Invalid for a reference to a stored file."""
    if part.image_url is None:
        refuse(f"{place}.file_id" if part.file_id else place, _NO_FILES if part.file_id else "has no image_url")
    media_type, data = _data_url(part.image_url)
    if data is None:
        return Media("image", url=part.image_url)
    return Media("image", media_type=media_type, size_bytes=_decoded_size(data))


def _file(part: wire.InputFile, place: str) -> Text | Media:
    if part.file_data is None:
        if part.file_url is None:
            refuse(f"{place}.file_id" if part.file_id else place, _NO_FILES if part.file_id else "has no file_data")
        return Media("document", url=part.file_url, title=part.filename)
    media_type, data = _data_url(part.file_data)
    if data is None:
        data = part.file_data
    media_type = media_type or _SUFFIXES.get((part.filename or "").rpartition(".")[2].lower(), "")
    if media_type.startswith(_TEXT_TYPES):
        try:
            body = base64.b64decode(data, validate=True).decode()
        except (binascii.Error, ValueError):
            pass
        else:
            return Text(f"Title: {part.filename}\n\n{body}" if part.filename else body)
    return Media("document", media_type=media_type, size_bytes=_decoded_size(data), title=part.filename)


def _data_url(url: str) -> tuple[str, str | None]:
    """Type and base64 of a data URL; None for any other URL."""
    if not url.startswith("data:"):
        return "", None
    head, _, data = url.partition(",")
    return head.removeprefix("data:").partition(";")[0], data


def _decoded_size(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")
