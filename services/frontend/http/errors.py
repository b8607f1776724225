"""Defines the HTTP form of errors. Each API has one, and so have paths outside all APIs."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from schemas.errors import RETRY_AFTER_S, ErrorInfo, Forbidden, NotFound

SERVED_MODELS = ". Served models: "
"""Precedes the names of models in the message of `UnknownModel`."""
MOST_NAMED = 10
"""Most models that the message of `UnknownModel` names."""


class UnknownModel(NotFound):
    """No model has the name that a request has."""

    def __init__(self, name: str, served: Sequence[str]) -> None:
        """`served`: the models that the sender may use."""
        listed = ", ".join(served[:MOST_NAMED])
        if len(served) > MOST_NAMED:
            listed += f" and {len(served) - MOST_NAMED} more, which GET /v1/models lists"
        super().__init__(f"model: {name}{SERVED_MODELS}{listed}" if served else f"model: {name}")
        self.name = name


class ForbiddenModel(Forbidden):
    """The sender's key may not use the model."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Your API key may not use the model {name}.", "model", param="model")
        self.name = name


class ErrorReply(Struct, frozen=True):
    """The HTTP response for an error."""

    status: int
    headers: dict[str, str]
    body: bytes


def json_error(info: ErrorInfo, status: int, document: object) -> ErrorReply:
    """Makes the response with a JSON document, and with the time to wait in a header."""
    headers = {"content-type": "application/json"}
    wait_s = info.retry_after_s
    if wait_s is None and status in (503, 529):
        wait_s = RETRY_AFTER_S
    if wait_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(wait_s)))
    return ErrorReply(status, headers, msgspec.json.encode(document))


ErrorShape: TypeAlias = Callable[[ErrorInfo, str, int | None], ErrorReply]
"""Makes the response for an error. Arguments: the error, the request id, a status that overrides
the error's own."""


FormatName: TypeAlias = Literal["anthropic", "openai", "shared"]


class ErrorFormat(Struct, frozen=True):
    """The form of errors that the clients of an API read."""

    name: FormatName
    schema: type
    """Type of the body."""
    statuses: frozenset[int]
    reply: ErrorShape
    unknown_path: str = "Not found"
    """The message for a path that does not exist, with places for `{method}` and `{path}`."""
    base_url: str = "Base URLs of OpenAI's clients end in /v1; those of Anthropic's have no /v1."
    """The rule for a client's base URL, for a path with too many or too few `/v1`."""
