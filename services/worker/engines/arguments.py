"""Makes arguments for the libraries and servers of engines, and log probabilities from their
results. Pure."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from schemas.conversation import Sampling
from services.tokenization.model_files import with_defaults
from services.worker.engine import EngineRequest
from services.worker.features import sampling_values

PRIORITY_STEPS = 1000
"""Difference of integer priorities for a difference of 1 between ours."""
_MAX_SEED = 2**63 - 1


def prompt_ids(request: EngineRequest, max_model_len: int) -> list[int]:
    """Returns the prompt for a library that decodes one token at least, and refuses a prompt that
    fills the window. A prefill of such a prompt omits its last token, which is never found in the
    cache anyway."""
    ids = list(request.token_ids)
    if len(ids) == max_model_len:
        ids.pop()
    return ids


def guided_arguments(request: EngineRequest) -> dict[str, Any] | None:
    """Returns the one keyword argument for the library's parameters of guided decoding; None:
    decoding is free.

    The libraries start a grammar at the first token that they decode, so that the grammar of a turn
    cannot guide the rest of an interrupted one.
    """
    form = request.guided
    if form is None:
        grammar = request.rest_grammar if request.resumed else request.grammar
        if not grammar:
            return None
        return {"grammar": grammar}
    if form.kind == "json_schema" and form.schema is not None:
        return {"json": form.schema}
    return {"json_object": True}


def chosen_first(
    token: int, values: Mapping[int, float], top: int | None
) -> list[tuple[int, float]]:
    """Returns (token, log probability) of the chosen token, then of the `top` likeliest others
    (None: all)."""
    ranked = sorted(values.items(), key=itemgetter(1), reverse=True)
    return chosen_then((token, values.get(token, float("-inf"))), ranked, top)


def chosen_then(
    chosen: tuple[int, float], ranked: Iterable[tuple[int, float]], top: int | None
) -> list[tuple[int, float]]:
    """Returns (token, log probability) of the chosen token, then of the first `top` others (None:
    all). `ranked`: the likeliest first, with the chosen one or without."""
    others = [pair for pair in ranked if pair[0] != chosen[0]]
    return [chosen, *others[:top]]


def integer_priority(request: EngineRequest) -> int:
    """Returns the priority as vLLM and SGLang take it, an integer; greater ones are sooner."""
    return round(request.priority * PRIORITY_STEPS)


def limited_sampling(request: EngineRequest, defaults: Sampling) -> dict[str, Any]:
    """Returns the fields of `SAMPLING_FIELDS` that are set, and `max_tokens`, in the limits of vLLM
    and SGLang: one token at least, which is dropped after a prefill. `defaults`: the model's."""
    sampling = with_defaults(request.sampling, defaults)
    most = max(1, sampling.max_tokens or 0)
    values = sampling_values(sampling) | {"max_tokens": most}
    if "seed" in values:
        # In the range of every sampler, and never -1, which means no seed.
        values["seed"] &= _MAX_SEED
    if "min_tokens" in values:
        values["min_tokens"] = min(values["min_tokens"], most)
    return values
