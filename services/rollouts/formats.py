"""Samples in the forms that trainers read. Pure."""

from msgspec import Struct

from services.rollouts.sample_lines import RolloutSample


class TrlRow(Struct, frozen=True, kw_only=True):
    """One row of what a `rollout_func` of trl's GRPOTrainer returns.

    The trainer takes a list for each member, with a row for each prompt that it was called with. It
    passes members that it does not know on to reward functions.
    """

    prompt_ids: list[int]
    """The ids before the first that the model decoded."""
    completion_ids: list[int]
    """All others, with the texts of users and tools among them."""
    logprobs: list[float | None]
    """One for each of `completion_ids`: 0 where the model did not decode it, null where none was
    recorded."""
    env_mask: list[int]
    """One for each of `completion_ids`: 1 where the model decoded it."""
    reward: float | None
    rollout: str
    group: str | None
    sample: str
    """The sample's `id`."""


def trl_row(sample: RolloutSample) -> TrlRow:
    """A whole sample as trl reads it."""
    start = sample.turns[0].start
    mask = sample.loss_mask[start:]
    logprobs: list[float | None] = [None if bit else 0.0 for bit in mask]
    if sample.logprobs is not None:
        recorded = sample.logprobs[start:]
        logprobs = [logprob if bit else 0.0 for logprob, bit in zip(recorded, mask, strict=True)]
    return TrlRow(
        prompt_ids=sample.ids[:start],
        completion_ids=sample.ids[start:],
        logprobs=logprobs,
        env_mask=mask,
        reward=sample.reward,
        rollout=sample.rollout,
        group=sample.group,
        sample=sample.id,
    )
