"""Matches tool results with their calls, and checks base64 data, for several APIs. Pure.

Checks do not decode the data, which would take ten times as long.
"""

import string
from collections.abc import Iterable

from schemas.conversation import Call, Message, Result
from schemas.errors import Invalid

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""Image types that both vendors' models read."""
_ALPHABET = (string.ascii_letters + string.digits + "+/").encode()


class CallHistory:
    """The messages that were read, and their calls."""

    def __init__(self, *, pairing: bool) -> None:
        """`pairing`: a result needs its call, and the calls of a message need different ids."""
        self.messages: list[Message] = []
        self._pairing = pairing
        self._calls: dict[str, tuple[str, int]] = {}
        """Name, and position among all calls of the conversation, by call id; the last call with an id counts."""
        self._made = 0

    def _add_call(self, call: Call) -> None:
        self._calls[call.call_id] = call.name, self._made
        self._made += 1

    def _name_of(self, call_id: str) -> str | None:
        """The name of a call; None for an unknown one."""
        return self._calls[call_id][0] if call_id in self._calls else None

    def _add_results(self, results: Iterable[Result]) -> None:
        """Adds results in the order of their calls, since many templates match them only by position."""
        ordered = sorted(results, key=lambda result: self._calls.get(result.call_id, ("", self._made))[1])
        self.messages.append(Message("tool", [*ordered]))


def data_url(url: str) -> tuple[str, str] | None:
    """The media type and the data of a data URL; None for any other URL."""
    if url[:5].lower() != "data:":
        return None
    head, _, data = url.partition(",")
    return head[5:].partition(";")[0], data


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


def image_size(media_type: str, data: str, place: str) -> int:
    """The size in bytes of a data URL's image. Raises Invalid in OpenAI's wording."""
    size = base64_size(data)
    if not media_type.startswith("image/"):
        got = f"unsupported MIME type '{media_type}'"
    elif size:
        return size
    else:
        got = "empty base64-encoded bytes" if size == 0 else "an invalid base64-encoded value"
    example = "data:image/png;base64,aW1nIGJ5dGVzIGhlcmU="
    expected = f"Expected a base64-encoded data URL with an image MIME type (e.g. '{example}')"
    raise Invalid(f"Invalid '{place}'. {expected}, but got {got}.", param=place, code="invalid_value")


def file_size(data: str, place: str) -> int:
    """The size in bytes of a file's data. Raises Invalid in OpenAI's wording."""
    size = base64_size(data)
    if size:
        return size
    got = "empty base64-encoded bytes" if size == 0 else "an invalid base64-encoded value"
    example = "data:application/pdf;base64,SGVsbG8sIFdvcmxkIQ=="
    expected = f"Expected a base64-encoded data URL (e.g. '{example}')"
    raise Invalid(f"Invalid file data: '{place}'. {expected}, but got {got}.", param=place, code="invalid_value")
