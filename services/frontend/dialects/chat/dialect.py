"""Chat Completions as a `Dialect`."""

from collections.abc import Mapping

from schemas.errors import ErrorInfo
from services.frontend.dialects.base import ErrorReply
from services.frontend.dialects.chat.request import ChatAsk, parse
from services.frontend.dialects.chat.shape import Settings
from services.frontend.dialects.openai_ending import PING
from services.frontend.dialects.shared_errors import openai_reply


class Chat:
    """Pure; one instance serves every request."""

    name = "chat"
    keepalive = PING

    def __init__(self, settings: Settings = Settings()) -> None:  # noqa: B008 (frozen)
        self._settings = settings

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ChatAsk:
        """Understands POST /v1/chat/completions. Raises Invalid."""
        return parse(body, headers, self._settings)

    def parse_prompt(self, body: bytes, headers: Mapping[str, str]) -> ChatAsk:
        """Understands a request of which only the prompt is wanted. Raises Invalid."""
        return parse(body, headers, self._settings, counting=True)

    def error(self, info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
        """An error before the first byte."""
        return openai_reply(info, request_id, status)
