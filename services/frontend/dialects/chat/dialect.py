"""Chat Completions as a `Dialect`."""

from collections.abc import Mapping

from schemas.errors import ErrorInfo
from services.frontend.dialects.base import ErrorReply
from services.frontend.dialects.chat.request import ChatAsk, parse
from services.frontend.dialects.chat.shape import Settings
from services.frontend.dialects.chat.tools import Tools
from services.frontend.dialects.known_parts import KnownParts
from services.frontend.dialects.openai_ending import PING
from services.frontend.dialects.shared_errors import openai_reply
from services.frontend.dialects.shared_texts import SharedTexts


class Chat:
    """Pure but for what it remembers of tools; one instance serves every request."""

    name = "chat"
    keepalive = PING

    def __init__(self, settings: Settings = Settings()) -> None:  # noqa: B008 (frozen)
        self._settings = settings
        self._tools: KnownParts[Tools] = KnownParts()
        self._texts = SharedTexts()

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ChatAsk:
        """Understands POST /v1/chat/completions. Raises Invalid."""
        ask = parse(body, headers, self._settings, known=self._tools)
        self._texts.share(ask.conversation)
        return ask

    def parse_prompt(self, body: bytes, headers: Mapping[str, str]) -> ChatAsk:
        """Understands a request of which only the prompt is wanted. Raises Invalid."""
        return parse(body, headers, self._settings, counting=True, known=self._tools)

    def error(self, info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
        """An error before the first byte."""
        return openai_reply(info, request_id, status)
