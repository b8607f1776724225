"""Checks whether a frontend of this machine serves requests, with the standard library: `turnwire up` starts its stages
0.1 s earlier than with aiohttp."""

import http.client
import ssl
from contextlib import closing, suppress
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

TIMEOUT_S = 5.0


def not_ready(url: str) -> str | None:
    """Why a frontend is not ready; None if it is. Blocks."""
    try:
        status, body = _get(url, "/health")
    except (OSError, http.client.HTTPException):
        return "the frontend is starting"
    return None if status == HTTPStatus.OK else reason_of(body)


def reason_of(body: bytes) -> str:
    """The reason in an answer of /health."""
    with suppress(msgspec.DecodeError):
        answer = msgspec.json.decode(body)
        if isinstance(answer, dict):
            if answer.get("bus") is False:
                return "the frontend is connecting to the bus"
            missing = [stage for stage, there in (answer.get("stages") or {}).items() if not there]
            if missing:
                return f"waiting for {' and '.join(missing)}"
    return "not ready yet"


def context_window(url: str, model: str) -> int:
    """The model's context window in tokens, from the frontend; 0 if unknown. Blocks."""
    try:
        listed = msgspec.json.decode(_get(url, "/v1/models")[1])
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return 0
    for card in listed.get("data", []) if isinstance(listed, dict) else []:
        if card.get("id") == model:
            return int(card.get("max_model_len") or card.get("max_input_tokens") or 0)
    return 0


def _get(url: str, path: str) -> tuple[int, bytes]:
    """Status and body. Raises OSError or HTTPException."""
    address = urlsplit(url)
    host = address.hostname or ""
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        # The frontends run on this machine; their certificate need not contain this address.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, address.port, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, address.port, timeout=TIMEOUT_S)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
