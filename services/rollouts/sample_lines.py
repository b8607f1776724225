"""The public form of samples: lines of JSON (docs/trajectories.md). Pure."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Raw, Struct
from msgspec.structs import asdict, replace

from services.rollouts.rollout import Rewards, Rollout
from services.rollouts.sampled_turn import SampleBlock
from services.rollouts.stored_turns import WhyMissing

Cause: TypeAlias = Literal["retry", "fork", "client", "template", "head", "unseen"]
"""
retry: the prompt of an earlier turn again: another try, another choice (`n`), or another session
that begins alike.
fork: the earlier turns, up to the end of one of them, and then another continuation.
client: the client changed what the model wrote, or left some of it out.
template: the client sent the model's turn back, and its tokens are others: the template renders it
differently.
head: something before the first answer changed (tools, instructions, a date).
unseen: the prompt has turns of the model that were not recorded.
"""
ParentCause: TypeAlias = Literal[Cause, "helper", "background", "compaction"]
"""
helper: a call of the parent's turn has started this agent.
background: a title, a recap or a check beside the parent, for which no one waits.
compaction: the parent's turn wrote a summary, with which the client replaced its history.
"""
Kind: TypeAlias = Literal["main", "helper", "background"]


class Break(Struct, frozen=True, omit_defaults=True):
    """Why a sample begins where it does, though it has a history."""

    cause: Cause
    sample: str | None = None
    """The sample from which it departs."""
    at: int | None = None
    """The first place at which their ids differ."""
    turn: str | None = None
    """The turn of that sample in which, or after which, that place is."""


class Parent(Struct, frozen=True, omit_defaults=True):
    """The turn of another sample that a sample goes back to."""

    sample: str
    turn: str
    cause: ParentCause
    call_id: str | None = None
    """The call that started a helper; null: it is not known."""


class SampleTurn(Struct, frozen=True, kw_only=True):
    """One turn of a sample. Offsets count ids of the sample."""

    turn: str
    time: float
    """Unix time of the request."""
    start: int
    """Where the output begins; the prompt is everything before."""
    end: int
    finish: str
    """Why decoding ended: `stop`, `length`, `context`, `stop_string`."""
    stop_id: int | None
    """The end token, which is then the last one before `end`."""
    blocks: list[SampleBlock] | None
    """The output's blocks; null: they are not known."""
    reward: float | None = None
    """This turn's own, if its trainer gave one."""
    experts: str | None = None
    """The file with the experts that its tokens were routed to; null: none were recorded."""


class SampleImage(Struct, frozen=True):
    """An image in a sample."""

    hash: str
    at: int
    """The first of its ids."""
    tokens: int
    """How many ids stand for it."""
    url: str | None = None
    """Where its data is."""


class SampleWeights(Struct, frozen=True):
    """Decoded ids that are of one version of the weights."""

    start: int
    end: int
    version: int | None
    """0: the weights that the engine has started with; null: unknown, in a turn that another worker
    has continued."""


class Sample(Struct, frozen=True, kw_only=True):
    """One unbroken sequence of ids, or what is new of it."""

    id: str
    """The id of its first turn."""
    model: str
    session: str | None
    """The session id that the client sent."""
    ids: list[int]
    loss_mask: list[int]
    """One for each id: 1 where the model decoded it in a turn of this sample, else 0."""
    logprobs: list[float | None] | None
    """One for each id, null where none was recorded; null: none at all."""
    turns: list[SampleTurn]
    departs: Break | None = None
    """Null: the beginning of a conversation."""
    kind: Kind = "main"
    parent: Parent | None = None
    """Null: it goes back to no recorded turn."""
    images: list[SampleImage] = []
    weights: list[SampleWeights] = []
    """They cover every decoded id once."""
    offset: int = 0
    """How many ids are in earlier lines of the same sample; the lists continue theirs."""


class RolloutSample(Sample, frozen=True, kw_only=True):
    """A sample of a rollout."""

    rollout: str = ""
    group: str | None = None
    reward: float | None = None


class MissingTurn(Struct, frozen=True):
    """A turn of a rollout that is in no sample."""

    turn: str
    why: Literal[WhyMissing, "running"]
    """`running`: it has not ended."""


class LastLine(Struct, frozen=True):
    """The line after all samples of a rollout."""

    rollout: str
    status: str
    group: str | None
    reward: float | None
    metadata: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    missing: list[MissingTurn]
    """Turns that are in none of its samples."""


def sample_of_rollout(
    sample: Sample, rollout: Rollout, rewards: Rewards, image_url: str
) -> RolloutSample:
    """A sample with what is known of its rollout. `image_url`: the address of images, up to their
    hashes."""
    turns = [replace(turn, reward=rewards.turns.get(turn.turn)) for turn in sample.turns]
    images = [replace(image, url=image_url + image.hash) for image in sample.images]
    members = asdict(sample) | {"turns": turns, "images": images}
    return RolloutSample(
        **members,
        rollout=rollout.id,
        group=rollout.group,
        reward=rewards.reward,
    )
