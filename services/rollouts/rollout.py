"""Defines a rollout: one run of an agent, recorded for training. Pure."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from schemas.conversation import Sampling

ROLLOUT_PREFIX = "ro_"
"""Begins every rollout's id, which is also a key: 128 random bits follow, in hexadecimal."""

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class RolloutLimits(Struct, frozen=True):
    """Where a rollout ends by itself; None: no limit of its own."""

    turns: Count | None = None
    output_tokens: Count | None = None
    """The sum over its turns. A turn gets what is left; turns that run at once get all of it
    each."""
    seconds: Annotated[float, Meta(gt=0)] | None = None
    """The most seconds since it was made."""


class WeightsPolicy(Struct, frozen=True):
    """The policy for changes of the weights while a rollout runs."""

    any_weights: bool = False
    """Its prompts may reuse KV blocks that other versions of the weights have computed."""
    max_version_lag: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """How many versions may lie between the oldest weights that decoded one of its turns and the
    newest. Then it takes no more turns; None: any number."""
    on_lag: Literal["end", "restart"] = "end"
    """`end`: its samples stay; `restart`: they are dropped, and the agent has to begin again."""


class Rollout(Struct, frozen=True, omit_defaults=True, tag="rollout"):
    """A rollout as it was made. What changes later is in `RolloutState` and `Rewards`."""

    id: str
    created: float
    """Unix time."""
    tenant: str | None
    """The holder of the key that made it; None where the server has no keys."""
    key: str = ""
    """The SHA-256 of that key, in hexadecimal."""
    model: str = ""
    """The model that decodes its turns, whichever its clients name; "": theirs."""
    sampling: Sampling = Sampling()
    """Replaces what clients send, where it is set."""
    limits: RolloutLimits = RolloutLimits()
    weights: WeightsPolicy = WeightsPolicy()
    group: str | None = None
    """Rollouts of one task have the same."""
    metadata: bytes = b"{}"
    """A JSON object."""


class RolloutState(Struct, frozen=True, omit_defaults=True, tag="state"):
    """The progress of a rollout."""

    status: Literal["open", "finished", "aborted", "ended", "stale"] = "open"
    """`ended`: by a limit; `stale`: by `on_lag`: restart."""
    reason: str = ""
    """The limit: `turns`, `output_tokens`, `seconds`, `version_lag`."""
    ended: float | None = None
    """Unix time; None: it is open."""
    run: int = 1
    """Counts the restarts. Turns of earlier runs are in no sample."""
    began: float | None = None
    """Unix time of the last restart."""


class Rewards(Struct, frozen=True, omit_defaults=True, tag="rewards"):
    """The rewards of one run of a rollout."""

    run: int = 1
    reward: float | None = None
    turns: dict[str, float] = {}
    """The reward of each turn that has one."""
