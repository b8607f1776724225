"""Checks whether a frontend of this machine serves requests."""

from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus

import msgspec

from services.cli.common import get
from services.cli.connect.server import Server

TIMEOUT_S = 5.0


def readiness_problem(url: str, models: Iterable[str] = ()) -> str | None:
    """Why a frontend is not ready, or does not serve one of the models; None if it does. Blocks."""
    try:
        status, body = get(f"{url}/health", TIMEOUT_S)
    except OSError:
        return "the frontend is starting"
    if status != HTTPStatus.OK:
        return problem_of(body)
    missing = [model for model in models if msgspec.json.encode(model) not in body]
    return f"waiting for {', '.join(missing)}" if missing else None


def answers(url: str) -> bool:
    """Whether a server of this machine answers. Blocks."""
    try:
        return get(url, TIMEOUT_S)[0] == HTTPStatus.OK
    except OSError:
        return False


def problem_of(body: bytes) -> str:
    """The problem in an answer of /health."""
    with suppress(msgspec.DecodeError):
        answer = msgspec.json.decode(body)
        if isinstance(answer, dict):
            if answer.get("bus") is False:
                return "the frontend is connecting to the bus"
            missing = [
                stage for stage, processes in (answer.get("stages") or {}).items() if not processes
            ]
            if missing:
                return f"waiting for {' and '.join(missing)}"
    return "not ready yet"


def context_window(url: str, model: str) -> int:
    """Reads the model's context window in tokens from the frontend; 0 if unknown. Blocks."""
    try:
        served = msgspec.json.decode(get(f"{url}/v1/models", TIMEOUT_S)[1], type=Server).models
    except (OSError, msgspec.DecodeError):
        return 0
    return next((card.window for card in served if card.id == model), 0)
