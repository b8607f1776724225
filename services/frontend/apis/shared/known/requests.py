"""Reads requests with `messages` and `tools`, of which sessions repeat most, and reads what is known only once."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw

from schemas.conversation import Turn
from schemas.errors import Invalid
from services.frontend.apis.shared.decode import NULL, decode_body
from services.frontend.apis.shared.known.history import Beginning, History, KnownHistory, caller_of, session_turns
from services.frontend.apis.shared.known.parts import KnownParts


class _ToolList(Protocol):
    @property
    def given(self) -> Any:
        """The tools as the body's type has them."""


B = TypeVar("B")
L = TypeVar("L", bound=_ToolList)
H = TypeVar("H", bound=History)


class RequestReader(Generic[B, L, H]):
    """Reads the requests of one API. Pure except for what it keeps of them, which is nothing by default."""

    def __init__(
        self,
        body: type[B],
        read_tools: Callable[[bytes], L],
        explain: Callable[[bytes, str], Invalid],
        *,
        tools: KnownParts[L] | None = None,
        sessions: KnownHistory[H] | None = None,
    ) -> None:
        """`explain`: see `decode_body`. `tools` and `sessions`: the tools and the beginnings of earlier requests."""
        shape: Any = msgspec.defstruct(body.__name__, [("tools", Raw, NULL)], bases=(body,), kw_only=True)
        self._body = msgspec.json.Decoder(body)
        self._body_with_raw_tools = msgspec.json.Decoder(shape)
        self._read_tools = read_tools
        self._explain = explain
        self._tools = tools or KnownParts(0)
        self._sessions = sessions or KnownHistory(lambda _: False, max_bytes=0)

    def decode(self, data: bytes, headers: Mapping[str, str]) -> tuple[B, L, Beginning[H] | None]:
        """The body and its tools; without its first messages where it has a known beginning. Raises Invalid."""
        (body, tools), begun = self._sessions.decode(
            data,
            caller_of(headers),
            lambda piece: decode_body(self._decode, piece, self._explain),
            lambda found: found[0].messages,
        )
        return body, tools, begun

    def read(
        self, data: bytes, headers: Mapping[str, str], history: H, messages: list[Any], begun: Beginning[H] | None
    ) -> list[Turn]:
        """The turns of the decoded messages, which `history` reads. It goes on from that of `begun`. Raises Invalid."""
        known = self._sessions.read(data, caller_of(headers), history, messages, begun)
        return session_turns(history.turns, known)

    def _decode(self, data: bytes) -> tuple[Any, L]:
        try:
            body: Any = self._body_with_raw_tools.decode(data)
            tools = self._tools.get(bytes(body.tools), self._read_tools)
        except msgspec.ValidationError:
            self._body.decode(data)  # for the place of the mistake in the whole body
            raise
        body.tools = tools.given
        return body, tools
