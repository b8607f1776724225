"""Completions as a `Dialect`."""

from collections.abc import Mapping

import msgspec

from schemas.errors import ErrorInfo
from services.frontend.dialects.base import ErrorReply
from services.frontend.dialects.completions.request import CompletionsAsk, parse
from services.frontend.dialects.openai_ending import PING
from services.frontend.dialects.shared_errors import openai_reply


class Completions:
    """Pure; one instance serves every request."""

    name = "completions"
    keepalive = PING

    def __init__(self, fingerprint: str | None = None) -> None:
        self._fingerprint = fingerprint

    def parse(self, body: bytes, headers: Mapping[str, str]) -> CompletionsAsk:
        """Understands POST /v1/completions. Raises Invalid."""
        return parse(body, headers, self._fingerprint)

    def error(self, info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
        """An error before the first byte."""
        if info.param == "messages":
            info = msgspec.structs.replace(info, param="prompt")
        return openai_reply(info, request_id, status)
