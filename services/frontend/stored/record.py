"""The records of what is stored: responses, for showing them, replaying their streams and
continuing from them; the replies of message threads, for continuing from them; and the hidden parts
of answers, for the next prompts of their clients."""

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from typing_extensions import override

ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})
"""The final states of a response."""
_OVERHEAD_BYTES = 512
_ITEM_OVERHEAD_BYTES = 120
"""The memory of an item in addition to its JSON."""
_OWN_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24}).*")


def _null() -> Raw:
    return Raw(b"null")


class StoredRecord(Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind"):
    """The members of every record."""

    id: str
    created: float
    """Unix time in seconds."""
    tenant: str | None = None
    """The tenant that created it; other tenants cannot see it."""
    owner: str = ""
    """The process in which it runs; empty when it has ended."""

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return True

    @property
    def size(self) -> int:
        """The approximate size in memory, in bytes."""
        return _OVERHEAD_BYTES

    def items(self) -> Iterator[tuple[str, Raw]]:
        """Its parts that have ids of their own, each with its id."""
        return iter(())


class StoredResponse(StoredRecord, frozen=True, omit_defaults=True, kw_only=True, tag="response"):
    """One state of one response; a later state is a new record."""

    response: Raw
    """The Response object."""
    status: str
    previous: str | None = None
    """The response that this one continues."""
    input: list[Raw] = []
    """The items of its own request, each with an id; earlier items are those of `previous`."""
    output: list[Raw] = []
    events: bytes = b""
    """The recording of its stream (`ZstdPacker`); empty where it was not streamed."""
    background: bool = False
    context: list[Raw] | None = None
    """Set where it was compacted: the items with which a chain starts here, in place of the earlier
    ones."""

    @property
    @override
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def chain_items(self) -> list[Raw]:
        """Its part of a chain: its input and its output, or what a compaction made of the chain."""
        return [*self.input, *self.output] if self.context is None else self.context

    @property
    def chain_previous(self) -> str | None:
        """The response with the part of a chain before this one; None: this is the first part."""
        return self.previous if self.context is None else None

    @property
    @override
    def size(self) -> int:
        items = [*self.input, *self.output, *(self.context or ()), self.response]
        return _OVERHEAD_BYTES + raw_size(items) + len(self.events)

    @override
    def items(self) -> Iterator[tuple[str, Raw]]:
        """Its own input and its output, each item with its id."""
        for raw in (*self.input, *self.output):
            yield item_id(raw), raw

    def item(self, id: str) -> Raw | None:
        """The item with this id."""
        return next((raw for name, raw in self.items() if name == id), None)


class StoredReply(StoredRecord, frozen=True, omit_defaults=True, kw_only=True, tag="reply"):
    """A reply of a message thread, with the messages that it answers."""

    previous: str | None = None
    """The reply that this one continues; None: it begins a thread."""
    messages: list[Raw] = []
    """The messages of its own request and the reply; earlier ones are those of `previous`."""
    head: Raw = msgspec.field(default_factory=_null)
    """The members of the request that hold for the whole thread, as an object. Null in later
    replies than the first."""

    @property
    @override
    def size(self) -> int:
        return _OVERHEAD_BYTES + raw_size([*self.messages, self.head])


class StoredHidden(StoredRecord, frozen=True, omit_defaults=True, kw_only=True, tag="hidden"):
    """The parts of an answer that its client did not get."""

    turns: Raw
    """`hidden.history.HiddenTurns` as JSON."""

    @property
    @override
    def size(self) -> int:
        return _OVERHEAD_BYTES + raw_size([self.turns])


class Claim(Struct, frozen=True):
    """The right of one request to continue a reply. It holds while the request runs, and for good
    once its own reply is stored."""

    successor: str
    """The id of the request's own reply."""
    owner: str
    """The process of the request."""


Record: TypeAlias = StoredResponse | StoredReply | StoredHidden
"""Every kind of record."""


def item_id(raw: Raw) -> str:
    """The id of an item; "" where it has none."""
    return _named.decode(raw).id


def response_of_item(id: str) -> str:
    """The id of the response that has an item, from an item id that this server made; "" for other
    ids."""
    match = _OWN_ITEM_ID.fullmatch(id)
    return f"resp_{match[1]}" if match else ""


def decode(data: bytes) -> Record | None:
    """Decodes a record from JSON; None for other data, such as that of another release."""
    try:
        return _record.decode(data)
    except msgspec.DecodeError:
        return None


def decode_claim(data: bytes | None) -> Claim | None:
    """Decodes a claim from JSON; None for one that was withdrawn, and for other data."""
    try:
        return None if data is None else _claim.decode(data)
    except msgspec.DecodeError:
        return None


def failed_view(record: StoredResponse) -> StoredResponse:
    """The record of a response that failed because its process is gone."""
    document = msgspec.json.decode(record.response)
    error = {"code": "server_error", "message": "The server that ran this response is gone."}
    response = Raw(msgspec.json.encode(document | {"status": "failed", "error": error}))
    return replace(record, status="failed", response=response, owner="")


def raw_size(raws: Iterable[Raw]) -> int:
    """The approximate size of items in memory, in bytes."""
    return sum(len(memoryview(raw)) + _ITEM_OVERHEAD_BYTES for raw in raws)


class _Named(Struct):
    id: str = ""


_record: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_claim: msgspec.json.Decoder[Claim | None] = msgspec.json.Decoder(Claim | None)
_named = msgspec.json.Decoder(_Named)
