"""The bodies and answers of `/rollouts`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.conversation import Sampling
from services.frontend.apis.shared.field_types import (
    MAX_INTEGER,
    Integer,
    JsonObject,
    Limit,
    Share,
    raw_default,
)
from services.rollouts.rollout import RolloutLimits, WeightsPolicy
from services.rollouts.sample_lines import MissingTurn

Penalty = Annotated[float, Meta(ge=-100.0, le=100.0)]
Label = Annotated[str, Meta(min_length=1, max_length=256)]


class RolloutSampling(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling in place of the one that clients request."""

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    seed: Integer | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    min_tokens: Limit | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None
    """Most tokens of a turn; a client may ask for fewer."""

    @classmethod
    def of(cls, sampling: Sampling) -> "RolloutSampling":
        """Returns the fields of the pipeline's form."""
        return cls(**{name: getattr(sampling, name) for name in cls.__struct_fields__})

    def as_sampling(self) -> Sampling:
        """Returns the fields in the form of the pipeline."""
        return Sampling(**{name: getattr(self, name) for name in self.__struct_fields__})


class LimitsBody(RolloutLimits, frozen=True, forbid_unknown_fields=True):
    """Where the rollout ends by itself."""


class WeightsBody(WeightsPolicy, frozen=True, forbid_unknown_fields=True):
    """The policy for changes of the weights while it runs."""


class RolloutBody(Struct, forbid_unknown_fields=True):
    """A new rollout."""

    model: str = ""
    """The model for all its turns, whichever the agent names. Default: the only one, or if there
    are several, those that the agent names."""
    sampling: RolloutSampling = RolloutSampling()
    limits: LimitsBody = LimitsBody()
    weights: WeightsBody = WeightsBody()
    group: Label | None = None
    """Rollouts of one task have the same."""
    metadata: JsonObject = raw_default(b"{}")
    """Comes back in its samples."""


class RewardBody(Struct, forbid_unknown_fields=True):
    """The reward of a rollout, of its turns, or both."""

    reward: float | None = None
    turns: dict[str, float] = {}
    """The reward of a turn, by its id in samples."""


class BaseUrls(Struct, frozen=True):
    """The base URLs for an agent."""

    anthropic: str
    """For `ANTHROPIC_BASE_URL`."""
    openai: str
    """For `OPENAI_BASE_URL`, or the `base_url` of a provider in Codex."""


class RolloutDocument(Struct, frozen=True):
    """A rollout."""

    id: str
    """Also the key for its agent: keep it secret."""
    object: Literal["rollout"]
    status: Literal["open", "finished", "aborted", "ended", "stale"]
    """`ended`: by a limit; `stale`: its weights are too old, and it waits for a restart."""
    reason: str | None
    """The limit that ended it."""
    created: float
    """Unix time."""
    ended: float | None
    run: int
    """Counts the restarts, from 1."""
    base_urls: BaseUrls
    model: str | None
    sampling: RolloutSampling
    limits: RolloutLimits
    weights: WeightsPolicy
    group: str | None
    metadata: JsonObject
    turns: int
    """Turns with tokens."""
    open_turns: int
    """Turns that run."""
    missing: list[MissingTurn]
    """Turns without tokens, those that run among them."""
    output_tokens: int
    weights_versions: list[int]
    """The oldest version of the weights of each turn with tokens."""
    reward: float | None
    turn_rewards: dict[str, float]


class DeletedRollout(Struct, frozen=True):
    """A rollout that was deleted."""

    id: str
    deleted: bool = True
