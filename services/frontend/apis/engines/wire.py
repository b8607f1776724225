"""The bodies and answers of `/engines`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.errors import ErrorInfo


class ResumeBody(Struct, forbid_unknown_fields=True):
    """Lets a model's engines go on."""

    model: str


class PauseBody(Struct, forbid_unknown_fields=True):
    """Stops a model's engines between two steps."""

    model: str
    mode: Literal["keep", "abort"] = "keep"
    """`keep`: open turns wait and go on; `abort`: they end with an error that clients retry."""


class WeightsBody(Struct, forbid_unknown_fields=True):
    """Loads other weights in a model's engines."""

    model: str
    source: Annotated[str, Meta(min_length=1)]
    """The directory that has them, below the workers' `weights_dir`."""
    version: Annotated[int, Meta(ge=1, le=2**53 - 1)] | None = None
    """The new number, greater than that of every worker's weights; default: the next one."""


class Worker(Struct, frozen=True):
    """One worker after the operation."""

    id: str
    weights_version: int
    paused: bool
    error: ErrorInfo | None = None
    """Why it did not do it."""


class Workers(Struct, frozen=True):
    """All workers of the model."""

    workers: list[Worker]
