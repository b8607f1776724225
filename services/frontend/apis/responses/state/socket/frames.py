"""Reads and writes frames of the Responses WebSocket that are not events of a response."""

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.errors import ErrorInfo, Invalid
from services.frontend.apis.responses.errors import FORMAT
from services.frontend.apis.shared.decode import json_defect
from services.frontend.apis.shared.field_types import NULL, is_set
from services.frontend.apis.shared.surrogates import decode_mended

CONNECTION_LIMIT = "websocket_connection_limit_reached"
"""An error code on which Codex and the SDK open another connection and send the whole
conversation."""
STREAM_LIMIT = "websocket_stream_limit_reached"
_STREAM_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,256}")


class Envelope(Struct):
    """The members that determine the kind of a client's frame."""

    type: str | None = None
    stream_id: Raw = NULL
    previous_response_id: Any = None
    input: Raw = NULL


_envelope = msgspec.json.Decoder(Envelope)


def read_envelope(data: bytes) -> Envelope:
    """Decodes a frame's envelope. Raises Invalid for what is not a JSON object with a type."""
    try:
        envelope = decode_mended(_envelope.decode, data)
    except msgspec.ValidationError:
        raise Invalid(
            "A frame must be a JSON object with a string 'type'.", code="invalid_type"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"The frame is not valid JSON: {json_defect(data, error)}"
        raise Invalid(message, code="invalid_json") from None
    except RecursionError:
        raise Invalid("The frame is nested too deeply.", code="invalid_json") from None
    if envelope.type is None:
        raise Invalid(
            "Missing required parameter: 'type'.", param="type", code="missing_required_parameter"
        )
    return envelope


def lane_of(envelope: Envelope) -> str | None:
    """The lane of a frame; None for the unnamed one. Raises Invalid."""
    if not is_set(envelope.stream_id):
        return None
    try:
        lane = msgspec.json.decode(envelope.stream_id, type=str)
    except msgspec.ValidationError:
        lane = ""
    if not _STREAM_ID.fullmatch(lane):
        message = "'stream_id' must be 1 to 256 characters of A-Z, a-z, 0-9, '_', '-', '.' and ':'."
        raise Invalid(message, param="stream_id", code="invalid_stream_id")
    return lane


def lane_suffix(lane: str | None) -> bytes:
    """The end of every frame of a lane, which follows `payload[:-1]`: the SDK waits for events that
    name their lane."""
    if lane is None:
        return b"}"
    return b',"stream_id":' + msgspec.json.encode(lane) + b"}"


def error_frame(info: ErrorInfo) -> bytes:
    """The frame for an error of the connection or of a response that could not start, with its HTTP
    status."""
    reply = FORMAT.reply(info, "", None)
    document: dict[str, Any] = {"type": "error", "status": reply.status}
    document |= msgspec.json.decode(reply.body)
    if "retry-after" in reply.headers:
        document["headers"] = {"retry-after": reply.headers["retry-after"]}
    return msgspec.json.encode(document)


def steer_refused(envelope: Envelope, sequence_number: int) -> bytes:
    """The answer to `response.steer`: it returns the input, since running responses are not
    changed."""
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "This server does not steer a running response; "
        "send the input with the next request.",
    }
    steer = {"previous_response_id": envelope.previous_response_id, "input": envelope.input}
    document = {
        "type": "response.steer.failed",
        "sequence_number": sequence_number,
        "error": error,
        "steer": steer,
    }
    return msgspec.json.encode(document)
