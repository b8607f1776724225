"""Decodes request bodies into typed Structs, and shares parts that requests repeat. All defects of
the JSON are reported as `Invalid`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Raw, Struct

from schemas.conversation import Conversation, Text, ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.shared.field_types import FORMS, NULL
from services.frontend.apis.shared.surrogates import decode_mended, mend_surrogates
from services.frontend.apis.shared.unknown_parts import UnknownParts
from services.frontend.apis.shared.validation import UnknownValue, parse_message
from services.runtime.caches.memo import Memo

_DECISIVE = (
    "messages",
    "input",
    "prompt",
    "system",
    "instructions",
    "previous_response_id",
    "tools",
    "functions",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "stop",
    "stop_sequences",
    "n",
    "response_format",
    "text",
    "output_config",
    "output_format",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "enable_thinking",
    "thinking_budget",
    "thinking_token_budget",
    *FORMS,
)
"""Fields that decide the answer of an API or of another server. An API that lacks one refuses
it."""


class ToolList(Struct, frozen=True):
    """The tools of a request body. Several requests share one instance, so it must not be
    changed."""

    wire_tools: Any
    """The tools in the type of the body."""
    specs: list[ToolSpec]


T = TypeVar("T")
B = TypeVar("B", bound=Struct)
L = TypeVar("L", bound=ToolList)

Decode: TypeAlias = Callable[[bytes], T]
"""Decodes a body. Raises as msgspec."""
Explain: TypeAlias = Callable[[bytes, str], Invalid]
"""Makes the error for a body that is not valid, from msgspec's message."""
Refuse: TypeAlias = Callable[[str], Invalid]
"""Makes the error for a field of another API, by its name."""

MAX_OBJECTS = 250_000
MAX_VALUES = 4_000_000
"""Limits of a body's objects and lists, and of its commas. msgspec holds the interpreter's lock
while it decodes. A request with more does not fit into a message on the bus, or has more tokens
than any model reads."""
_TRUNCATED = "Input data was truncated"
MIN_SHARED_CHARS = 4096
"""A shorter text is not shared."""
_SHARED_MESSAGES = 2
"""Some clients send instructions as messages, or put them before the user's first words."""


def is_json(text: str, shape: Any) -> bool:
    """Whether the text is one complete JSON value of this type."""
    try:
        msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def one_line(json: bytes | Raw) -> Raw:
    """The JSON for an event, which is one line: without line breaks between its tokens. A copy,
    because a part of a body would keep the whole body in memory while the answer is rendered."""
    text = bytes(json)
    if b"\n" in text or b"\r" in text:
        return Raw(msgspec.json.format(text, indent=-1))
    return Raw(text)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a list; empty if the value is not a list."""
    items = value if isinstance(value, list) else []
    return (item for item in items if isinstance(item, dict))


def tags_of(union: Any) -> tuple[str, ...]:
    """The tags of a union of Structs."""
    return tuple(str(kind.__struct_config__.tag) for kind in get_args(union))


def body_decoder(body: type[B], refuse: Refuse) -> Decode[B]:
    """Returns a function that decodes a body. It raises the error of `refuse`, and as msgspec."""
    foreign = [name for name in _DECISIVE if name not in body.__struct_fields__]
    with_foreign: Any = msgspec.defstruct(
        body.__name__, [(name, Any, None) for name in foreign], bases=(body,), kw_only=True
    )
    decoder = msgspec.json.Decoder(with_foreign)

    def decode(data: bytes) -> B:
        request: B = decoder.decode(data)
        for name in foreign:
            if getattr(request, name) is not None:
                raise refuse(name)
        return request

    return decode


def decode_body(decode: Decode[T], body: bytes, explain: Explain) -> T:
    """Decodes a body. Raises Invalid."""
    if _has_too_many_values(body):
        raise Invalid(
            f"The request body has more than {MAX_OBJECTS} objects, or {MAX_VALUES} values."
        )
    try:
        if not body.isascii():
            # raw parts of the body are decoded later, where this error is not expected
            body.decode()
        return decode_mended(decode, body)
    except msgspec.ValidationError as error:
        raise explain(mend_surrogates(body), str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not body.strip():
            raise Invalid("The request has no body.") from None
        raise Invalid(f"The request body is not valid JSON: {json_defect(body, error)}") from None
    except RecursionError:
        raise Invalid("The request body is nested too deeply.") from None


def json_defect(json: bytes, error: Exception) -> str:
    """What is wrong with JSON, and at which byte, by the error of its decoding."""
    defect = str(error)
    if defect == _TRUNCATED:  # msgspec gives the byte of any other defect
        return f"{defect} (byte {len(json)})"
    return defect


class PlainBody(Generic[T]):
    """Bodies of one type, with errors that name the member."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def parse(self, body: bytes, _headers: object) -> T:
        """Decodes a body, for `read_request`. Raises Invalid."""
        return decode_body(self._decode, body, _explain_plainly)


def _explain_plainly(_body: bytes, message: str) -> Invalid:
    return Invalid(f"The body is not valid: {message}")


def _has_too_many_values(body: bytes) -> bool:
    if len(body) <= MAX_OBJECTS:  # there is nothing to count
        return False
    if body.count(b"{") + body.count(b"[") > MAX_OBJECTS:
        return True
    return len(body) > MAX_VALUES and body.count(b",") > MAX_VALUES


class BodyDecoder(ABC, Generic[B, L]):
    """Decodes the request bodies of one API. `tools`, which a session repeats in every request, are
    read once."""

    def __init__(self, body: type[B]) -> None:
        self.memo: Memo[Any] = Memo()
        """Tools, by their JSON, and the texts of `share_texts`."""
        with_raw_tools: Any = msgspec.defstruct(
            body.__name__, [("tools", Raw, NULL)], bases=(body,), kw_only=True
        )
        self._body = msgspec.json.Decoder(body)
        self._decode_with_raw_tools = body_decoder(with_raw_tools, self._refuse)

    @abstractmethod
    def _read_tools(self, data: bytes) -> L:
        """Decodes a list of tools. Raises msgspec.ValidationError and Invalid."""

    @abstractmethod
    def _without_unknown(self, data: bytes, unknown: UnknownParts) -> bytes:
        """Replaces the content parts of unknown types in a body."""

    @abstractmethod
    def _explain(self, body: bytes, message: str) -> Invalid:
        """Makes the error for a body that is not valid, from msgspec's message."""

    @abstractmethod
    def _refuse(self, name: str) -> Invalid:
        """Makes the error for a field of another API, by its name."""

    def tools(self, data: bytes) -> L:
        """The tools in a list's JSON. Raises as `_read_tools`."""
        tools: L = self.memo.get(data, self._read_tools)
        return tools

    def decode(self, data: bytes) -> tuple[B, L, list[str]]:
        """The body, its tools, and the types of content parts that were left out. Raises
        Invalid."""
        return decode_body(self._decode_known, data, self._explain)

    def _decode_known(self, data: bytes) -> tuple[Any, L, list[str]]:
        try:
            return *self._decode(data), []
        except msgspec.ValidationError as error:
            if not isinstance(parse_message(str(error)).reason, UnknownValue):
                raise
            unknown = UnknownParts()
            known = self._without_unknown(data, unknown)
            if not unknown.types:
                raise
        return *self._decode(known), unknown.types

    def _decode(self, data: bytes) -> tuple[Any, L]:
        try:
            body: Any = self._decode_with_raw_tools(data)
            tools = self.tools(bytes(body.tools))
        except msgspec.ValidationError:
            self._body.decode(data)  # reports the place of the mistake in the whole body
            raise
        body.tools = tools.wire_tools
        return body, tools


def share_texts(conversation: Conversation, texts: Memo[Any]) -> None:
    """Replaces long instructions by equal ones of the memo: a thousand streams of an agent take 2
    MB with one copy of them, 179 MB without. Nothing else may read the conversation yet."""
    messages = conversation.messages[:_SHARED_MESSAGES]
    lists: list[list[Any]] = [conversation.system, *(message.parts for message in messages)]
    for parts in lists:
        for index, part in enumerate(parts):
            if isinstance(part, Text) and len(part.text) >= MIN_SHARED_CHARS:
                parts[index] = texts.get(part.text, Text)
