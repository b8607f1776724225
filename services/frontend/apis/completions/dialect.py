"""Completions as a `Dialect`."""

from collections.abc import Mapping

from services.frontend.apis.common.openai_chunks import PING
from services.frontend.apis.completions.request import CompletionsAsk, parse


class Completions:
    """Pure; one instance serves every request."""

    name = "completions"
    keepalive = PING

    def __init__(self, fingerprint: str | None = None) -> None:
        self._fingerprint = fingerprint

    def parse(self, body: bytes, headers: Mapping[str, str]) -> CompletionsAsk:
        """Parses POST /v1/completions. Raises Invalid."""
        return parse(body, headers, self._fingerprint)
