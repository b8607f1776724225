"""Converts content blocks (text, media, search results, other servers' tools) to parts of the
conversation."""

import base64
from collections.abc import Collection, Iterable
from typing import TypeAlias

import msgspec
from msgspec import Raw

from schemas.conversation import Media, ResultPart, Text, ToolReference
from schemas.errors import Invalid
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.errors import input_should_be
from services.frontend.apis.shared.content import (
    IMAGE_TYPES,
    base64_size,
    data_url,
    linked_media,
    readable_lines,
)
from services.frontend.apis.shared.decode import tags_of
from services.frontend.apis.shared.unknown_parts import (
    UnknownParts,
    elements,
    is_unknown_question,
    members,
    part_type,
    with_member,
)
from services.frontend.content.image import ImageSource, InlineImage
from services.frontend.content.pdf_document import make_document
from services.frontend.content.urls import is_url

Heading: TypeAlias = Iterable[tuple[str, str | None]]
"""Facts about a document, by name: lines before its text."""
PDF = "application/pdf"
_UNREADABLE = "Could not process image"
"""The native error for such data has no place."""

_OPAQUE = frozenset(
    {"type", "encrypted_content", "encrypted_index", "encrypted_stdout", "page_age", "data"}
)

_BLOCKS = frozenset(tags_of(wire.Block))
_BLOCKS_WITHIN = {
    "tool_result": frozenset(tags_of(wire.ResultBlock)),
    "search_result": frozenset({"text"}),
}
"""The types of the blocks in the `content` of another block."""
_DOCUMENT_BLOCKS = frozenset({"text", "image"})


def without_unknown_blocks(body: bytes, unknown: UnknownParts) -> bytes:
    """A request with unknown content blocks replaced."""
    body = bytes(unknown.replace_in(Raw(body), "system", _BLOCKS))
    messages = elements(members(body).get("messages"))
    replaced = [_with_known_content(message, _BLOCKS, unknown) for message in messages]
    if messages and is_unknown_question(messages[-1], _BLOCKS):
        replaced[-1] = messages[-1]
    return bytes(with_member(body, "messages", replaced))


def _with_known_content(holder: Raw, known: Collection[str], unknown: UnknownParts) -> Raw:
    """An object with known blocks in its `content`, and in theirs."""
    holder = unknown.replace_in(holder, "content", known)
    blocks = elements(members(holder).get("content"))
    if not blocks:
        return holder
    return with_member(holder, "content", [_with_known_blocks(block, unknown) for block in blocks])


def _with_known_blocks(block: Raw, unknown: UnknownParts) -> Raw:
    kind = part_type(block)
    if kind in _BLOCKS_WITHIN:
        return _with_known_content(block, _BLOCKS_WITHIN[kind], unknown)
    source = members(block).get("source")
    if kind != "document" or source is None or part_type(source) != "content":
        return block
    return with_member(block, "source", unknown.replace_in(source, "content", _DOCUMENT_BLOCKS))


def plain_parts(block: wire.Block | wire.ResultBlock, field_path: str) -> list[Text | Media] | None:
    """The parts of a block that may be in a message or in a tool result; None for a block of
    another kind.

    Empty text, which agents send, is left out. Raises Invalid for a file reference.
    """
    if isinstance(block, wire.TextBlock):
        return [Text(block.text)] if block.text else []
    if isinstance(block, wire.ImageBlock):
        return [_image(block, field_path)]
    if isinstance(block, wire.DocumentBlock):
        return _document(block, field_path)
    if isinstance(block, wire.SearchResultBlock):
        body = "\n".join(text.text for text in block.content if text.text)
        return [Text(_with_head((("Title", block.title), ("Source", block.source)), body))]
    return None


def result_parts(content: str | list[wire.ResultBlock] | None, field_path: str) -> list[ResultPart]:
    """The content of a tool result. A string and one text block are equivalent."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content else []
    parts: list[ResultPart] = []
    for index, block in enumerate(content):
        if isinstance(block, wire.ToolReferenceBlock):
            parts.append(ToolReference(block.tool_name))
        elif isinstance(block, wire.BrowserStateBlock):
            state = f"Open tabs: {raw_text(block.tabs)}"
            changes = raw_text(block.state_changes)
            if changes != "null":
                state += f"\nChanges: {changes}"
            parts.append(Text(state))
        else:
            parts += plain_parts(block, f"{field_path}.content.{index}") or []
    return parts


def raw_text(raw: Raw) -> str:
    """JSON text as the client spelled it. It is UTF-8, as `decode_body` has checked."""
    return bytes(raw).decode()


def _image(block: wire.ImageBlock, field_path: str) -> Media:
    source = block.source
    if block.transformations is not None and block.transformations.oversized_image == "error":
        place = "transformations.oversized_image"
        raise Invalid(
            f"{field_path}.image.{place}: 'error' is not supported by this server, which scales "
            "large images down",
            param=f"{field_path}.{place}",
        )
    if isinstance(source, wire.FileSource):
        raise _no_files(field_path)
    if isinstance(source, wire.UrlSource):
        _check_url(source.url, f"{field_path}.image.source.url")
        return linked_media("image", source.url)
    shown_path = f"{field_path}.image.source.base64"
    if source.media_type not in IMAGE_TYPES:
        raise Invalid(
            f"{shown_path}.media_type: {input_should_be(IMAGE_TYPES)}",
            param=f"{field_path}.source.media_type",
        )
    data = _base64(source, f"{field_path}.image")
    size = base64_size(data)
    if not size:
        reason = "invalid base64 data" if size is None else "image cannot be empty"
        raise Invalid(f"{shown_path}: {reason}", param=f"{field_path}.source.data")

    def refuse(reason: str) -> Invalid:
        message = reason if reason == _UNREADABLE else f"{shown_path}: {reason}"
        return Invalid(message, param=f"{field_path}.source.data")

    return InlineImage(
        "image", source.media_type, size, source=ImageSource(data, refuse, strict=True)
    )


def _check_url(url: str, field_path: str) -> None:
    if data_url(url) is None and not is_url(url):
        raise Invalid(f"{field_path}.url: Invalid URL", param=field_path)


def _document(block: wire.DocumentBlock, field_path: str) -> list[Text | Media]:
    source = block.source
    if isinstance(source, wire.FileSource):
        raise _no_files(field_path)
    if isinstance(source, wire.UrlSource):
        _check_url(source.url, f"{field_path}.document.source.url")
        return [linked_media("document", source.url, title=block.title)]
    head = (("Title", block.title), ("Context", block.context))
    if isinstance(source, wire.Base64Source):
        return [_inline_document(source, head, block.title, field_path)]
    if isinstance(source, wire.PlainSource):
        return [Text(_with_head(head, source.data))]
    return _document_blocks(source, head, field_path)


def _inline_document(
    source: wire.Base64Source,
    head: Heading,
    title: str | None,
    field_path: str,
) -> Text | Media:
    data = _base64(source, f"{field_path}.document")
    size = base64_size(data)
    is_text = source.media_type.startswith("text/")
    if is_text and size is not None:
        try:
            return Text(_with_head(head, base64.b64decode(data).decode()))
        except UnicodeDecodeError:
            return Media("document", media_type=source.media_type, size_bytes=size, title=title)
    if source.media_type != PDF and not is_text:
        shown_path = f"{field_path}.document.source.base64.media_type"
        raise Invalid(
            f"{shown_path}: Input should be '{PDF}'", param=f"{field_path}.source.media_type"
        )
    if not size:
        kind = "PDF" if source.media_type == PDF else "document"
        shown_path = f"{field_path}.{kind.lower()}.source.base64.data"
        raise Invalid(
            f"{shown_path}: The {kind} specified was not valid.", param=f"{field_path}.source.data"
        )
    text = data if isinstance(data, str) else data.decode()
    return make_document(source.media_type, text, size, title, _with_head(head, ""))


def _document_blocks(
    source: wire.ContentSource, head: Heading, field_path: str
) -> list[Text | Media]:
    if isinstance(source.content, str):
        return [Text(_with_head(head, source.content))]
    title = _with_head(head, "")
    parts: list[Text | Media] = [Text(title)] if title else []
    for index, block in enumerate(source.content):
        parts += plain_parts(block, f"{field_path}.source.content.{index}") or []
    return parts


def _with_head(head: Heading, body: str) -> str:
    lines = [f"{name}: {value}" for name, value in head if value]
    return "\n".join([*lines, "", body]) if lines else body


def _base64(source: wire.Base64Source, field_path: str) -> bytes | str:
    data = bytes(source.data)
    if not data.startswith(b'"'):
        raise Invalid(f"{field_path}.source.base64.data: Input should be a valid string")
    if b"\\" in data:
        return msgspec.json.decode(data, type=str)
    return data[1:-1]


def _no_files(field_path: str) -> Invalid:
    return Invalid(
        f"{field_path}.source: file references are not supported by this server; "
        "send the content itself"
    )


def hosted_text(block: wire.HostedBlock) -> str:
    """The text of a block of a tool that another server ran (web search, code execution, MCP, …).

    Conversations that began elsewhere contain such blocks and refer to their results. A call
    becomes one line, a result its readable content. Raises Invalid for content that is nested too
    deeply or has a number out of range.
    """
    if isinstance(block, wire.HostedUse):
        return f"[{block.name or 'tool'} {raw_text(block.input)}]"
    tag = str(block.__struct_config__.tag)
    try:
        text = "\n".join(readable_lines(msgspec.json.decode(block.content), _OPAQUE))
        return f"[{tag.removesuffix('_tool_result')} result]\n{text}"
    except RecursionError:
        raise Invalid(f"`{tag}` block: its content is nested too deeply") from None
    except msgspec.ValidationError:
        raise Invalid(f"`{tag}` block: a number in its content is out of range") from None
