"""Decides when a rollout ends, and the sampling of its turns. Pure."""

from typing import Any

from msgspec import structs
from msgspec.structs import replace

from schemas.conversation import Conversation, Sampling
from schemas.errors import Invalid
from services.frontend.rollouts.view import RolloutView
from services.rollouts.rollout import Rollout, RolloutState

ROLLOUT_ENDED = "rollout_ended"
"""The code of the error for a turn after the end. Its status is one that agents do not retry."""

_ENDS = {
    "finished": "it is finished",
    "aborted": "it was aborted",
    "restarted": "it was restarted, and this turn began before",
    "deleted": "it was deleted",
    "turns": "it has all of its turns",
    "output_tokens": "it has all of its output tokens",
    "seconds": "its time is over",
    "version_lag": "the weights have changed too often since its first turn",
}


def ended_error(why: str) -> Invalid:
    """Makes the error for a turn of a rollout that has ended. `why`: its status, the limit, or why
    its turns are cancelled."""
    return Invalid(f"This rollout takes no more turns: {_ENDS[why]}.", code=ROLLOUT_ENDED)


def reached_limit(view: RolloutView, now: float, version: int | None) -> RolloutState | None:
    """Returns the state in which an open rollout ends; None: it goes on.

    Args:
        now: Unix time.
        version: of the weights that would decode a turn; None: no turn is wanted.
    """
    if view.state.status != "open":
        return None
    reason = _reached(view, now, version)
    if not reason:
        return None
    restarts = reason == "version_lag" and view.rollout.weights.on_lag == "restart"
    return replace(view.state, status="stale" if restarts else "ended", reason=reason, ended=now)


def _reached(view: RolloutView, now: float, version: int | None) -> str:
    """The name of the limit that is reached; "": none."""
    limits = view.rollout.limits
    began = view.state.began or view.rollout.created
    if _is_reached(limits.turns, view.decoded_turns):
        return "turns"
    if _is_reached(limits.output_tokens, view.output_tokens):
        return "output_tokens"
    if _is_reached(limits.seconds, now - began):
        return "seconds"
    if version is not None and view.versions:
        newest = max(version, view.versions[-1])
        lag = newest - view.versions[0]  # also where a worker has decoded with older ones
        if _is_reached(view.rollout.weights.max_version_lag, lag - 1):
            return "version_lag"
    return ""


def _is_reached(limit: float | None, value: float) -> bool:
    return limit is not None and value >= limit


def rollout_conversation(
    conversation: Conversation, view: RolloutView, *, logprobs: bool
) -> Conversation:
    """Returns a turn's conversation as it is decoded: with the rollout's sampling, and with what is
    recorded. `logprobs`: whether the engine reports log probabilities."""
    rollout = view.rollout
    sampling = replace(conversation.sampling, **_changes(rollout.sampling))
    most = _least(
        conversation.sampling.max_tokens, rollout.sampling.max_tokens, _tokens_left(rollout, view)
    )
    least = sampling.min_tokens and _least(sampling.min_tokens, most)
    sampling = replace(sampling, max_tokens=most, min_tokens=least, return_token_ids=True)
    if logprobs and sampling.logprobs is None:
        sampling = replace(sampling, logprobs=0)
    hints = replace(conversation.hints, any_weights=rollout.weights.any_weights)
    return replace(conversation, sampling=sampling, hints=hints)


def _changes(sampling: Sampling) -> dict[str, Any]:
    """The fields that are set."""
    defaults = structs.asdict(Sampling())
    fields = structs.asdict(sampling)
    return {name: value for name, value in fields.items() if value != defaults[name]}


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _tokens_left(rollout: Rollout, view: RolloutView) -> int | None:
    most = rollout.limits.output_tokens
    return None if most is None else max(most - view.output_tokens, 1)
