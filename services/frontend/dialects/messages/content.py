"""Content blocks as parts of the one conversation: what a model is told of text, images, documents and searches."""

import base64
from collections.abc import Iterable
from typing import Literal
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw

from schemas.conversation import Media, ResultPart, Text, ToolReference
from schemas.errors import Invalid
from services.frontend.dialects.messages.wire import (
    Base64Source,
    Block,
    BrowserStateBlock,
    ContentSource,
    DocumentBlock,
    FileSource,
    ImageBlock,
    PlainSource,
    ResultBlock,
    SearchResultBlock,
    TextBlock,
    ToolReferenceBlock,
    UrlSource,
)

MAX_MEDIA_TYPE = 128


def plain_parts(block: Block | ResultBlock, path: str) -> list[Text | Media] | None:
    """The parts of a block that may stand in a message or in a tool result; None for a block of another kind.

    Empty text is no part: it adds nothing to a prompt, and agents send it. Raises Invalid for a file reference.
    """
    if isinstance(block, TextBlock):
        return [Text(block.text)] if block.text else []
    if isinstance(block, ImageBlock):
        return [_image(block, path)]
    if isinstance(block, DocumentBlock):
        return _document(block, path)
    if isinstance(block, SearchResultBlock):
        body = "\n".join(text.text for text in block.content)
        return [Text(_headed((("Title", block.title), ("Source", block.source)), body))]
    return None


def result_parts(content: str | list[ResultBlock] | None, path: str) -> list[ResultPart]:
    """What a tool answered. A string, and one text block of it, are the same."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts: list[ResultPart] = []
    for index, block in enumerate(content):
        if isinstance(block, ToolReferenceBlock):
            parts.append(ToolReference(block.tool_name))
        elif isinstance(block, BrowserStateBlock):
            changes = raw_text(block.state_changes)
            state = f"Open tabs: {raw_text(block.tabs)}"
            parts.append(Text(state if changes == "null" else f"{state}\nChanges: {changes}"))
        else:
            parts += plain_parts(block, f"{path}.content.{index}") or []
    return parts


def raw_text(raw: Raw) -> str:
    """JSON text as the client spelled it. Raises Invalid where it is not UTF-8."""
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"The request body is not valid JSON: {error}") from None


def _image(block: ImageBlock, path: str) -> Media:
    source = block.source
    if isinstance(source, FileSource):
        raise _no_files(path)
    if isinstance(source, UrlSource):
        return _linked("image", source.url)
    return Media("image", media_type=source.media_type, size_bytes=_decoded_size(source, f"{path}.image"))


def _document(block: DocumentBlock, path: str) -> list[Text | Media]:
    source = block.source
    if isinstance(source, FileSource):
        raise _no_files(path)
    if isinstance(source, UrlSource):
        return [_linked("document", source.url, block.title)]
    head = (("Title", block.title), ("Context", block.context))
    if isinstance(source, Base64Source):
        text = _plain_text(source)
        if text is not None:
            return [Text(_headed(head, text))]
        size = _decoded_size(source, f"{path}.document")
        return [Media("document", media_type=source.media_type, size_bytes=size, title=block.title)]
    if isinstance(source, PlainSource):
        return [Text(_headed(head, source.data))]
    return _document_blocks(source, head, path)


def _document_blocks(source: ContentSource, head: tuple[tuple[str, str | None], ...], path: str) -> list[Text | Media]:
    if isinstance(source.content, str):
        return [Text(_headed(head, source.content))]
    title = _headed(head, "")
    parts: list[Text | Media] = [Text(title)] if title else []
    for index, block in enumerate(source.content):
        parts += plain_parts(block, f"{path}.source.content.{index}") or []
    return parts


def _linked(kind: Literal["image", "document"], url: str, title: str | None = None) -> Media:
    """What lies elsewhere. A `data:` URL lies here, and goes no further than any other inline bytes."""
    if url[:5].lower() != "data:":
        return Media(kind, url=url, title=title)
    meta, _, data = url[5:].partition(",")
    media_type, *marks = meta.split(";")
    size = len(data) * 3 // 4 - data[-2:].count("=") if "base64" in marks else len(unquote_to_bytes(data))
    return Media(kind, media_type=media_type[:MAX_MEDIA_TYPE], size_bytes=size, title=title)


def _plain_text(source: Base64Source) -> str | None:
    """The text of a document that is one, though it came as bytes."""
    if not source.media_type.startswith("text/"):
        return None
    try:
        return base64.b64decode(msgspec.json.decode(source.data, type=str), validate=True).decode()
    except (ValueError, msgspec.ValidationError):
        return None


def _headed(head: Iterable[tuple[str, str | None]], body: str) -> str:
    lines = [f"{name}: {value}" for name, value in head if value]
    return "\n".join([*lines, "", body]) if lines else body


def _decoded_size(source: Base64Source, path: str) -> int:
    data = bytes(source.data)
    if not data.startswith(b'"'):
        raise Invalid(f"{path}.source.base64.data: Input should be a valid string")
    characters = len(data) - 2 - data.count(b"\\")
    return characters * 3 // 4 - data[-3:-1].count(b"=")


def _no_files(path: str) -> Invalid:
    return Invalid(f"{path}.source: file references are not supported by this server; send the content itself")
