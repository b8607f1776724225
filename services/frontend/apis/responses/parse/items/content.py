"""Converts content parts: text stays text; images, files and audio become `Media`.

Items of tools that OpenAI's servers run (web search, code interpreter, MCP, …) become text: a
session that began elsewhere contains them and refers to their results. They are never refused;
members that only those servers can use (ids, opaque data, base64 images) are left out.
"""

import base64
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from schemas.conversation import Media, Text
from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.compaction import TRIGGER
from services.frontend.apis.responses.parse.members import convert
from services.frontend.apis.shared.content import (
    check_url,
    data_url,
    file_size,
    linked_image,
    readable_lines,
)
from services.frontend.apis.shared.openai.wording import unsupported
from services.frontend.content.pdf_document import make_document

AS_TEXT = frozenset(
    {"web_search_call", "file_search_call", "computer_call", "image_generation_call"}
    | {"code_interpreter_call", "mcp_call", "program", "program_output"}
)
"""Kinds of items that become text of the assistant's message."""
IGNORED = frozenset({"mcp_list_tools", "mcp_approval_request", "mcp_approval_response", TRIGGER})
"""Kinds of items without content for the model."""

_INPUT = (
    "server_label",
    "name",
    "arguments",
    "action",
    "actions",
    "queries",
    "code",
    "revised_prompt",
)
_OUTPUT = ("results", "outputs", "output", "error")
_OPAQUE = frozenset(
    {"type", "id", "url_citation", "file_id", "attributes", "score", "container_id", "fingerprint"}
)

_TEXT_TYPES = (
    "text/",
    "application/json",
    "application/xml",
    "application/x-yaml",
    "application/toml",
)
_SUFFIXES = {
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "json": "application/json",
}
_OMITTED_IMAGE = "image content omitted because you do not support image input"
"""Codex sends this text instead of an image to a model without `image` among its modalities."""
_CIPHERTEXT = re.compile(r"[A-Za-z0-9+/_=-]{64,}")
"""Encrypted text of OpenAI's. A task for another agent has blanks."""


def parts(content: str | Sequence[wire.Part], field_path: str) -> list[Text | Media]:
    """The parts of a message's content; a string is one text part. Empty text is left out. Raises
    Invalid for a reference to a stored file."""
    if isinstance(content, str):
        return [Text(content)] if content else []
    out: list[Text | Media] = []
    for index, part in enumerate(content):
        out += _parts_of(part, f"{field_path}[{index}]")
    return out


def agent_parts(
    message: wire.AgentMessage, field_path: str, unknown: list[str]
) -> list[Text | Media]:
    """The parts of a message from another agent: a line with the names of both, then its content.
    Encrypted text, which only OpenAI's servers read, is added to `unknown`. Raises Invalid."""
    head = "message"
    if message.author:
        head += f" from {message.author}"
    if message.recipient:
        head += f" to {message.recipient}"
    out: list[Text | Media] = [Text(f"[{head}]")]
    if isinstance(message.content, str):
        return [*out, *_text(message.content)]
    for index, part in enumerate(message.content):
        if not isinstance(part, wire.EncryptedText):
            out += _parts_of(part, f"{field_path}.content[{index}]")
        elif _CIPHERTEXT.fullmatch(part.encrypted_content):
            unknown.append("encrypted_content")
        else:
            out += _text(part.encrypted_content)
    return out


def _parts_of(part: wire.Part, field_path: str) -> list[Text | Media]:
    if isinstance(part, wire.PlainText):
        return _text(part.text)
    if isinstance(part, wire.Refusal):
        return _text(part.refusal)
    if isinstance(part, wire.InputFile):
        return [_file(part, field_path)]
    if isinstance(part, wire.ResponsesInputAudio):
        return [Media("audio")]
    return [image(part, field_path)]


def _text(text: str) -> list[Text | Media]:
    if text == _OMITTED_IMAGE:
        return [Media("image")]
    return [Text(text)] if text else []


def image(part: wire.InputImage, field_path: str) -> Media:
    """An image. Raises Invalid for a reference to a stored file."""
    if part.image_url is None:
        raise _without_data(part.file_id, field_path, "image_url")
    return linked_image(part.image_url, f"{field_path}.image_url")


def _file(part: wire.InputFile, field_path: str) -> Text | Media:
    if part.file_data is None:
        if part.file_url is None:
            raise _without_data(part.file_id, field_path, "file_data")
        check_url(part.file_url, f"{field_path}.file_url")
        return Media("document", url=part.file_url, title=part.filename)
    media_type, data = data_url(part.file_data) or ("", part.file_data)
    size = file_size(data, f"{field_path}.file_data")
    filename = part.filename or ""
    head = ""
    if filename:
        head = f"Title: {filename}\n\n"
    if not media_type:
        _, _, suffix = filename.rpartition(".")
        media_type = _SUFFIXES.get(suffix.lower(), "")
    if media_type.startswith(_TEXT_TYPES):
        try:
            return Text(head + base64.b64decode(data).decode())
        except UnicodeDecodeError:
            pass
    return make_document(media_type, data, size, part.filename, head)


def _without_data(file_id: str | None, field_path: str, member: str) -> Invalid:
    if file_id:
        return unsupported(
            f"{field_path}.file_id", "names a file, and this server keeps none; send its content"
        )
    return unsupported(field_path, f"has no {member}")


def hosted_text(kind: str, item: Raw, field_path: str) -> str:
    """The text of an item: one line for the tool's input, then its output. Raises Invalid for an
    item that is nested too deeply or has a number out of range."""
    members = convert(dict[str, Any], item, field_path)
    try:
        inputs = _lines(members, _INPUT)
        outputs = _lines(members, _OUTPUT)
        if kind == "program_output":
            outputs += readable_lines(members.get("result"), _OPAQUE)
    except RecursionError:
        raise Invalid(f"A `{kind}` item is nested too deeply.", param="input") from None
    head = " ".join([kind, *inputs])
    return "\n".join([f"[{head}]", *outputs])


def _lines(members: dict[str, Any], keys: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for key in keys:
        if key in members:
            lines += readable_lines(members[key], _OPAQUE)
    return lines
