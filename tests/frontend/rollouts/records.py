"""Records of turns, as the store has them."""

from array import array
from collections.abc import Sequence
from typing import Any

from schemas.conversation import Client
from schemas.events import FinishReason, PromptImage, WeightsSpan
from services.rollouts.sampled_turn import SampledTurn
from services.rollouts.stored_turns import BegunTurn, FailedTurn, StoredTurn, WhyMissing, pack_turn


def sampled_turn(
    id: str, prompt: Sequence[int] = (1, 2), output: Sequence[int] = (3, 4), **fields: Any
) -> SampledTurn:
    """A turn that has ended."""
    base: dict[str, Any] = {"time": 1.0, "ended": 2.0, "model": "m", "client": Client()}
    base["reason"] = FinishReason.STOP
    return SampledTurn(id=id, prompt=array("I", prompt), output=array("I", output), **base | fields)


def stored_turn(
    id: str,
    *,
    run: int = 1,
    output: Sequence[int] = (3, 4),
    version: int = 0,
    images: Sequence[PromptImage] = (),
) -> StoredTurn:
    """The record of a turn with tokens. `version`: of the weights that decoded it."""
    spans = [WeightsSpan(0, version)] if version else []
    turn = sampled_turn(id, output=output, weights=spans, images=[*images])
    return pack_turn(turn, None, run)


def open_turn(id: str, run: int = 1, frontend: str = "frontend-1") -> BegunTurn:
    """The record of a turn that runs."""
    return BegunTurn(id, run, frontend, 1.0)


def failed_turn(
    id: str, run: int = 1, why: WhyMissing = "failed", output_tokens: int = 0
) -> FailedTurn:
    """The record of a turn without tokens."""
    return FailedTurn(id, run, why, output_tokens)
