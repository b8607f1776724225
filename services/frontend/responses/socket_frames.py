"""The frames of the Responses WebSocket that are not events of a response (apis.md B.7)."""

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.errors import ErrorInfo, Invalid
from services.frontend.dialects.decode import decode_mended
from services.frontend.dialects.responses.errors import own_words
from services.frontend.dialects.responses.wire import NULL
from services.frontend.dialects.shared_errors import openai_reply

CONNECTION_LIMIT = "websocket_connection_limit_reached"
"""Codex and the SDK open another connection on this code, and send everything anew."""
STREAM_LIMIT = "websocket_stream_limit_reached"
INVALID_STREAM = "invalid_stream_id"
_STREAM_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,256}")


class Envelope(Struct):
    """What tells a client's frames apart."""

    type: str | None = None
    stream_id: Raw = NULL
    previous_response_id: Any = None
    input: Raw = NULL


def read_envelope(data: bytes) -> Envelope:
    """Raises Invalid for what is no JSON object with a type."""
    try:
        envelope = decode_mended(_envelope.decode, data)
    except msgspec.ValidationError:
        raise Invalid("A frame must be a JSON object with a string 'type'.", code="invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid("The frame is not valid JSON.", code="invalid_json") from None
    if envelope.type is None:
        raise Invalid("Missing required parameter: 'type'.", param="type", code="missing_required_parameter")
    return envelope


def lane_of(envelope: Envelope) -> str | None:
    """The lane of a frame; None for the one without a name. Raises Invalid."""
    if bytes(envelope.stream_id) == b"null":
        return None
    try:
        lane = msgspec.json.decode(envelope.stream_id, type=str)
    except msgspec.ValidationError:
        lane = ""
    if not _STREAM_ID.fullmatch(lane):
        raise Invalid(
            "'stream_id' must be 1 to 256 characters of A-Z, a-z, 0-9, '_', '-', '.' and ':'.",
            param="stream_id",
            code=INVALID_STREAM,
        )
    return lane


def suffix_of(lane: str | None) -> bytes:
    """What every frame of a lane ends in."""
    return b"}" if lane is None else b',"stream_id":' + msgspec.json.encode(lane) + b"}"


def on_lane(payload: bytes, suffix: bytes) -> bytes:
    """An event as a frame of a lane: without the lane's name the SDK waits for ever."""
    return payload[:-1] + suffix


def error_frame(info: ErrorInfo, lane: str | None) -> bytes:
    """An error of the connection or of a response that could not begin; nested, with the status it has over HTTP."""
    reply = openai_reply(own_words(info), "")
    document: dict[str, Any] = {
        "type": "error",
        "status": reply.status,
        "error": msgspec.json.decode(reply.body)["error"],
    }
    if "retry-after" in reply.headers:
        document["headers"] = {"retry-after": reply.headers["retry-after"]}
    if lane is not None:
        document["stream_id"] = lane
    return msgspec.json.encode(document)


def steer_refused(envelope: Envelope, sequence_number: int, lane: str | None) -> bytes:
    """The answer to `response.steer`: what a model is saying is not changed here, and the input goes back. `lane`: that
    of the response which was to be steered."""
    document: dict[str, Any] = {
        "type": "response.steer.failed",
        "sequence_number": sequence_number,
        "error": {
            "type": "invalid_request_error",
            "code": "steering_not_supported",
            "message": "This server does not steer a running response; send the input with the next request.",
        },
        "steer": {"previous_response_id": envelope.previous_response_id, "input": envelope.input},
    }
    if lane is not None:
        document["stream_id"] = lane
    return msgspec.json.encode(document)


_envelope = msgspec.json.Decoder(Envelope)
