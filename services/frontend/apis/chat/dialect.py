"""Chat Completions as a `Dialect`."""

from collections.abc import Mapping
from typing import Any

from services.frontend.apis.chat.request import ChatAsk, parse
from services.frontend.apis.chat.shape import Settings
from services.frontend.apis.common.known_parts import KnownParts, share_texts
from services.frontend.apis.common.openai_chunks import PING


class Chat:
    """Pure, except for its cache of tools and instructions. One instance serves every request."""

    name = "chat"
    keepalive = PING

    def __init__(self, settings: Settings = Settings()) -> None:  # noqa: B008 (frozen)
        self._settings = settings
        self._known: KnownParts[Any] = KnownParts()

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ChatAsk:
        """Parses POST /v1/chat/completions. Raises Invalid."""
        ask = parse(body, headers, self._settings, known=self._known)
        share_texts(ask.conversation, self._known)
        return ask

    def parse_prompt(self, body: bytes, headers: Mapping[str, str]) -> ChatAsk:
        """Parses a request for its prompt only. Raises Invalid."""
        return parse(body, headers, self._settings, counting=True, known=self._known)
