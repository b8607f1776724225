"""The Messages API as a `Dialect`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from services.frontend.apis.common.known_parts import KnownParts, share_texts
from services.frontend.apis.messages.request import MessagesAsk, parse
from services.frontend.apis.messages.stream import PING


class Messages:
    """Pure, except for its cache of tools and instructions. One instance serves every request."""

    name = "messages"
    keepalive = PING

    def __init__(self) -> None:
        self._known: KnownParts[Any] = KnownParts()

    def parse(self, body: bytes, headers: Mapping[str, str]) -> MessagesAsk:
        """Parses POST /v1/messages. Raises Invalid."""
        ask = parse(body, headers, known=self._known)
        share_texts(ask.conversation, self._known)
        return ask

    def parse_count(self, body: bytes, headers: Mapping[str, str]) -> MessagesAsk:
        """Parses POST /v1/messages/count_tokens. Raises Invalid."""
        return parse(body, headers, counting=True, known=self._known)

    def count_body(self, ask: MessagesAsk, tokens: int) -> bytes:
        """The answer to count_tokens."""
        count: dict[str, object] = {"input_tokens": tokens}
        if ask.context_management:
            count["context_management"] = {"original_input_tokens": tokens}
        return msgspec.json.encode(count)
