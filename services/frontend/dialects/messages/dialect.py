"""The Messages API as a `Dialect`."""

from collections.abc import Mapping

import msgspec

from schemas.errors import ErrorInfo
from services.frontend.dialects.base import ErrorReply
from services.frontend.dialects.known_parts import KnownParts
from services.frontend.dialects.messages.errors import error_reply
from services.frontend.dialects.messages.request import MessagesAsk, parse
from services.frontend.dialects.messages.stream import PING
from services.frontend.dialects.messages.tools import Tools
from services.frontend.dialects.shared_texts import SharedTexts


class Messages:
    """Pure but for what it remembers of tools and instructions; one instance serves every request."""

    name = "messages"
    keepalive = PING

    def __init__(self) -> None:
        self._tools: KnownParts[Tools] = KnownParts()
        self._texts = SharedTexts()

    def parse(self, body: bytes, headers: Mapping[str, str]) -> MessagesAsk:
        """Understands POST /v1/messages. Raises Invalid."""
        ask = parse(body, headers, known=self._tools)
        self._texts.share(ask.conversation)
        return ask

    def parse_count(self, body: bytes, headers: Mapping[str, str]) -> MessagesAsk:
        """Understands POST /v1/messages/count_tokens. Raises Invalid."""
        return parse(body, headers, counting=True, known=self._tools)

    def count_body(self, ask: MessagesAsk, tokens: int) -> bytes:
        """The answer to count_tokens."""
        count: dict[str, object] = {"input_tokens": tokens}
        if ask.context_management:
            count["context_management"] = {"original_input_tokens": tokens}
        return msgspec.json.encode(count)

    def error(self, info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
        """An error before the first byte."""
        return error_reply(info, request_id, status)
