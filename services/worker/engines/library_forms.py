"""Translates what TensorRT-LLM and vLLM have in common: guided decoding and log probabilities. Pure."""

from collections.abc import Mapping
from typing import Any

from services.worker.engine import EngineRequest


def guided_arguments(request: EngineRequest) -> dict[str, Any] | None:
    """The one keyword argument for the library's parameters of guided decoding; None where decoding is free.

    The libraries start a grammar at the first token that they decode: the rest of a turn that was broken off cannot be
    held to it.
    """
    form = request.guided
    if form is None:
        return {"grammar": request.grammar} if request.grammar and not request.resumed else None
    if form.kind == "json_schema" and form.schema is not None:
        return {"json": form.schema}
    return {"json_object": True}


def chosen_first(token: int, values: Mapping[int, float], top: int | None) -> list[tuple[int, float]]:
    """(token, log probability) of the chosen token, and of `top` others, likeliest first (None: of all)."""
    others = sorted((pair for pair in values.items() if pair[0] != token), key=lambda pair: -pair[1])
    return [(token, values.get(token, float("-inf"))), *others[:top]]
