"""Formats errors for several APIs: in OpenAI's format, and in a format that clients of every API
can read."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from schemas.errors import ErrorInfo, ErrorKind
from services.frontend.apis.messages import errors as messages
from services.frontend.http.errors import SERVED_MODELS, ErrorFormat, ErrorReply, json_error

OPENAI_KINDS: dict[ErrorKind, tuple[int, str, str | None]] = {
    ErrorKind.INVALID: (400, "invalid_request_error", None),
    ErrorKind.CONTEXT_OVERFLOW: (400, "invalid_request_error", "context_length_exceeded"),
    ErrorKind.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    ErrorKind.FORBIDDEN: (403, "invalid_request_error", None),
    ErrorKind.NOT_FOUND: (404, "invalid_request_error", None),
    ErrorKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    ErrorKind.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.OVERLOADED: (503, "server_error", "server_is_overloaded"),
    ErrorKind.UNAVAILABLE: (503, "server_error", None),
    ErrorKind.TIMED_OUT: (504, "server_error", None),
    ErrorKind.ENGINE: (500, "server_error", None),
}
"""Status, type and code of every kind of error in the OpenAI APIs."""


class OpenAIErrorDetail(Struct):
    """The kind and the text of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Struct):
    """An error in the format of the OpenAI APIs."""

    error: OpenAIErrorDetail


class SharedErrorDetail(Struct):
    """The kind and the text of an error, with the members of both families of APIs."""

    type: str
    message: str
    param: str | None
    code: str | None


class SharedError(Struct):
    """An error that clients of every API can read."""

    type: Literal["error"]
    error: SharedErrorDetail
    request_id: str


class UnknownModelWording(Struct, frozen=True):
    """How an API refuses a model that is not served."""

    status: int
    message: str
    """Its message, with a place for the `{name}`."""


UNKNOWN_PATH = "Invalid URL ({method} {path})"
_BASE_URL = "The base URL of OpenAI's clients is the server's address with one /v1."
_UNKNOWN_MODEL = UnknownModelWording(
    404, "The model `{name}` does not exist or you do not have access to it."
)
_CHAT_PARAMS = {"stop_sequences": "stop", "format": "response_format", "prompt": "messages"}
"""Fields of Chat Completions, by the names that the pipeline uses for them."""
_MODEL = "model: "
_REQUIRED = ": Field required"


def openai_error(
    info: ErrorInfo,
    params: Mapping[str, str] = _CHAT_PARAMS,
    unknown_model: UnknownModelWording = _UNKNOWN_MODEL,
) -> OpenAIErrorDetail:
    """An error of the OpenAI APIs in a response or in a stream. `params`: see
    `openai_format`."""
    info = _openai_wording(info, unknown_model)
    _, kind, code = OPENAI_KINDS[info.kind]
    # An API's own errors have codes, and the names of its fields.
    is_of_api = info.code is not None and info.kind is not ErrorKind.CONTEXT_OVERFLOW
    param = info.param if is_of_api else params.get(info.param or "", info.param)
    return OpenAIErrorDetail(info.message, kind, param, info.code or code)


def openai_format(
    params: Mapping[str, str], unknown_model: UnknownModelWording = _UNKNOWN_MODEL
) -> ErrorFormat:
    """The format of one of the OpenAI APIs. `params`: its fields, by the names that the pipeline
    uses for them."""

    def reply(info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
        own_status, _, _ = OPENAI_KINDS[info.kind]
        if _is_unknown_model(info):
            own_status = unknown_model.status
        error = openai_error(info, params, unknown_model)
        return json_error(info, status or own_status, OpenAIError(error))

    return ErrorFormat("openai", OpenAIError, STATUSES, reply, UNKNOWN_PATH, _BASE_URL)


def union_reply(info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
    """The reply for clients of any API: Anthropic's format with the members that OpenAI's clients
    read."""
    own_status, kind = messages.KINDS[info.kind]
    code = info.code or OPENAI_KINDS[info.kind][2]
    # `/v1/tokenize` takes the bodies of two APIs.
    param = None if info.param == "format" else info.param
    error = SharedErrorDetail(kind, info.message, param, code)
    return json_error(info, status or own_status, SharedError("error", error, request_id))


def _is_unknown_model(info: ErrorInfo) -> bool:
    return info.kind is ErrorKind.NOT_FOUND and info.message.startswith(_MODEL)


def _openai_wording(info: ErrorInfo, unknown_model: UnknownModelWording) -> ErrorInfo:
    """The error with texts that clients of OpenAI's APIs parse, in place of Anthropic's."""
    if info.kind is ErrorKind.CONTEXT_OVERFLOW and info.details is not None:
        return _overflow(info, info.details)
    if _is_unknown_model(info):
        name, separator, served = info.message.removeprefix(_MODEL).partition(SERVED_MODELS)
        message = unknown_model.message.format(name=name)
        if separator:
            message += SERVED_MODELS.removeprefix(".") + served
        return ErrorInfo(info.kind, message, "model", "model_not_found")
    if info.kind is ErrorKind.FORBIDDEN and info.param == "model":
        return ErrorInfo(info.kind, info.message, None, "model_not_found")
    if info.kind is ErrorKind.INVALID and info.message.endswith(_REQUIRED):
        name = info.message.removesuffix(_REQUIRED)
        return ErrorInfo(
            info.kind, f"Missing required parameter: '{name}'.", name, "missing_required_parameter"
        )
    return info


def _overflow(info: ErrorInfo, details: dict[str, Any]) -> ErrorInfo:
    window = details.get("context_window")
    prompt = details.get("prompt_tokens")
    if window is None or prompt is None:
        return info
    answer = details.get("max_tokens")
    if answer is None:
        answer = window - details.get("max_prompt_tokens", window)
    message = (
        f"This model's maximum context length is {window} tokens. However, you requested "
        f"{prompt + answer} tokens ({prompt} in the messages, {answer} in the completion). "
        "Please reduce the length of the messages or completion."
    )
    return ErrorInfo(info.kind, message, info.param, info.code)


STATUSES = frozenset({408, *(status for status, _, _ in OPENAI_KINDS.values())})
CHAT = openai_format(_CHAT_PARAMS)
SHARED = ErrorFormat("shared", SharedError, messages.STATUSES, union_reply, UNKNOWN_PATH)
