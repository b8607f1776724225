"""Matches tool results with their calls, and reads media and other servers' results, for several
APIs. Pure.

Checks do not decode the data, which would take ten times as long.
"""

import string
from collections.abc import Collection, Iterable
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from schemas.conversation import Call, Media, Message, Result
from schemas.errors import Invalid
from services.frontend.content.image import ImageSource, InlineImage
from services.frontend.content.urls import is_url

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""Image types that both vendors' models read."""
_AN_IMAGE = (
    "Expected a base64-encoded data URL with an image MIME type (e.g. "
    "'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=')"
)
_A_FILE = (
    "Expected a base64-encoded data URL (e.g. 'data:application/pdf;base64,SGVsbG8sIFdvcmxkIQ==')"
)
_MAX_TYPE_CHARS = 128
_ALPHABET = (string.ascii_letters + string.digits + "+/").encode()


class CallHistory:
    """The messages that were read, and their calls."""

    def __init__(self, *, pairing: bool) -> None:
        """`pairing`: a result needs its call, and the calls of a message need different ids."""
        self.messages: list[Message] = []
        self._pairing = pairing
        self._call_names: dict[str, str] = {}
        self._call_positions: dict[str, int] = {}
        """Positions among all calls of the conversation. Both are by call id; the last call with an
        id counts."""
        self._calls = 0

    def _add_call(self, call: Call, rendered: str | None = None) -> None:
        """`rendered`: the tool's name as the model sees it, if that is another."""
        self._call_names[call.call_id] = rendered or call.name
        self._call_positions[call.call_id] = self._calls
        self._calls += 1

    def _name_of(self, call_id: str) -> str | None:
        """The name of a call; None for an unknown one."""
        return self._call_names.get(call_id)

    def _add_results(self, results: Iterable[Result]) -> None:
        """Adds results in the order of their calls, since many templates match them only by
        position."""
        ordered = sorted(results, key=self._position)
        self.messages.append(Message("tool", [*ordered]))

    def _position(self, result: Result) -> int:
        """The position of a result's call; results without a call come last."""
        return self._call_positions.get(result.call_id, self._calls)


def data_url(url: str) -> tuple[str, str] | None:
    """The media type and the data of a data URL; None for any other URL."""
    if url[:5].lower() != "data:":
        return None
    head, _, data = url.partition(",")
    return head[5:].partition(";")[0], data


def check_url(url: str, field_path: str) -> None:
    """Raises Invalid in OpenAI's wording for what cannot be a URL."""
    if not is_url(url):
        raise Invalid(
            f"Invalid '{field_path}'. "
            "Expected a valid URL, but got a value with an invalid format.",
            param=field_path,
            code="invalid_value",
        )


def base64_size(data: str | bytes) -> int | None:
    """The size of the decoded data in bytes; None for data that is not base64."""
    if isinstance(data, str):
        if not data.isascii():
            return None
        data = data.encode()
    padding = data.translate(None, _ALPHABET)
    if len(data) % 4 or padding not in (b"", b"=", b"==") or not data.endswith(padding):
        return None
    return len(data) // 4 * 3 - len(padding)


def linked_image(url: str, field_path: str) -> Media:
    """An image by URL. Raises Invalid in OpenAI's wording."""
    inline = data_url(url)
    if inline is None:
        check_url(url, field_path)
        return Media("image", url=url)
    media_type, data = inline
    problem = "" if media_type.startswith("image/") else f"unsupported MIME type '{media_type}'"
    size = _size(data, f"'{field_path}'. {_AN_IMAGE}", field_path, problem)

    def refuse(reason: str) -> Invalid:
        code = "image_too_large" if "exceed" in reason else "image_parse_error"
        return Invalid(f"Invalid '{field_path}': {reason}.", param=field_path, code=code)

    return InlineImage("image", media_type, size, source=ImageSource(data, refuse))


def linked_media(
    kind: Literal["image", "document", "audio"],
    url: str,
    media_type: str = "",
    title: str | None = None,
) -> Media:
    """Media by URL; only type and size of a data URL are kept. `media_type`: where the URL has
    none."""
    inline = data_url(url)
    if inline is None:
        return Media(kind, media_type=media_type, url=url, title=title)
    own_type, data = inline
    head = url.removesuffix(data)
    size = base64_size(data) if ";base64," in head else len(unquote_to_bytes(data))
    media_type = own_type[:_MAX_TYPE_CHARS] or media_type
    return Media(kind, media_type=media_type, size_bytes=size, title=title)


def file_size(data: str, field_path: str) -> int:
    """The size in bytes of a file's data. Raises Invalid in OpenAI's wording."""
    return _size(data, f"file data: '{field_path}'. {_A_FILE}", field_path)


def _size(data: str, expected: str, field_path: str, problem: str = "") -> int:
    size = base64_size(data)
    if size and not problem:
        return size
    got = problem
    if not got:
        got = "empty base64-encoded bytes" if size == 0 else "an invalid base64-encoded value"
    raise Invalid(f"Invalid {expected}, but got {got}.", param=field_path, code="invalid_value")


def readable_lines(value: Any, opaque: Collection[str]) -> list[str]:
    """The texts and numbers in JSON of a tool that another server ran: a line for each object and
    each item of a list. Left out are data URLs, and members with an `opaque` name, which only that
    server can use. Raises RecursionError."""
    lines: list[str] = []
    if isinstance(value, list):
        for item in value:
            lines += readable_lines(item, opaque)
        return lines
    if isinstance(value, dict):
        words: list[str] = []
        for key, item in value.items():
            if key in opaque:
                continue
            if isinstance(item, dict | list):
                lines += readable_lines(item, opaque)
            else:
                words += readable_lines(item, opaque)
        return [" ".join(words), *lines] if words else lines
    if value in (None, "") or (isinstance(value, str) and value.startswith("data:")):
        return []
    return [str(value)]
