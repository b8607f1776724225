"""Decodes the bodies of the Messages API. Pure, except for a memo of tools."""

from msgspec import Struct
from typing_extensions import override

from schemas.errors import Invalid
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.content import without_unknown_blocks
from services.frontend.apis.messages.errors import explain, extra_input
from services.frontend.apis.messages.tools import MessagesTools, read_tools
from services.frontend.apis.shared.decode import BodyDecoder
from services.frontend.apis.shared.unknown_parts import UnknownParts
from services.frontend.http.bodies import is_large


class DecodedBody(Struct, frozen=True):
    """A request body, whole: of a request that continues a thread, with what the thread holds."""

    body: wire.MessagesBody
    declared: MessagesTools
    unknown: list[str]
    """The types of content blocks that were left out."""
    is_large: bool
    """Whether it is converted in a thread."""
    held: int = 0
    """The number of messages that the thread holds; the client sent those that follow."""


class MessagesBodies(BodyDecoder[wire.MessagesBody, MessagesTools]):
    """Decodes bodies."""

    def __init__(self, served: frozenset[str]) -> None:
        """`served`: the kinds of hosted tools that this server runs."""
        super().__init__(wire.MessagesBody)
        self._served = served

    def read(self, data: bytes) -> DecodedBody:
        """Decodes a body. Raises Invalid in the native wording."""
        body, declared, unknown = self.decode(data)
        return DecodedBody(body, declared, unknown, is_large(data))

    @override
    def _read_tools(self, data: bytes) -> MessagesTools:
        return read_tools(data, self._served)

    @override
    def _without_unknown(self, data: bytes, unknown: UnknownParts) -> bytes:
        return without_unknown_blocks(data, unknown)

    @override
    def _explain(self, body: bytes, message: str) -> Invalid:
        return explain(body, message)

    @override
    def _refuse(self, name: str) -> Invalid:
        return extra_input(name)
