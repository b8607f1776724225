"""The Responses API as a `Dialect`."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw

from schemas.errors import ErrorInfo, Invalid
from services.frontend.dialects.base import ErrorReply
from services.frontend.dialects.known_parts import KnownParts
from services.frontend.dialects.responses.ask import Resolve, ResponsesAsk, understand
from services.frontend.dialects.responses.errors import own_words
from services.frontend.dialects.responses.request import ResponsesRequest, decode
from services.frontend.dialects.responses.stream import KEEPALIVE
from services.frontend.dialects.responses.tools import Offered
from services.frontend.dialects.responses.vault import Vault
from services.frontend.dialects.shared_errors import openai_reply


class Responses:
    """Pure but for what it remembers of tools; one instance serves every request."""

    name = "responses"
    keepalive = KEEPALIVE

    def __init__(self) -> None:
        self._echoes: KnownParts[Raw] = KnownParts()
        self._offers: KnownParts[Offered] = KnownParts()

    def decode(self, body: bytes, *, counting: bool = False) -> ResponsesRequest:
        """Reads POST /v1/responses or a WebSocket's `response.create`. `counting`: the bodies of input_tokens and
        compact. Raises Invalid."""
        return decode(body, counting=counting, known=self._echoes)

    def understand(
        self,
        request: ResponsesRequest,
        headers: Mapping[str, str],
        *,
        history: Sequence[Raw] = (),
        resolve: Resolve | None = None,
        vault: Vault | None = None,
        counting: bool = False,
        compacting: bool = False,
    ) -> ResponsesAsk:
        """The conversation of a request; see `ask.understand`."""
        return understand(
            request,
            headers,
            history=history,
            resolve=resolve,
            vault=vault,
            counting=counting,
            compacting=compacting,
            known=self._offers,
        )

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ResponsesAsk:
        """Understands a request where nothing is stored. Raises Invalid."""
        request = self.decode(body)
        if request.previous_response_id is not None:
            raise previous_not_found(request.previous_response_id)
        return self.understand(request, headers)

    def count_body(self, tokens: int) -> bytes:
        """The answer to POST /v1/responses/input_tokens."""
        return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens})

    def error(self, info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
        """An error before the first byte."""
        return openai_reply(own_words(info), request_id, status)


def previous_not_found(name: str) -> Invalid:
    """The error for a `previous_response_id` that is not stored; Codex sends everything anew on its code."""
    return Invalid(
        f"Previous response with id '{name}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
