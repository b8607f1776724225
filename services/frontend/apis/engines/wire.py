"""The bodies and answers of `/engines`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.control import EngineState


class ResumeBody(Struct, forbid_unknown_fields=True):
    """Lets a model's engines go on."""

    model: str


class PauseBody(ResumeBody, forbid_unknown_fields=True):
    """Stops a model's engines between two steps."""

    mode: Literal["keep", "abort"] = "keep"
    """`keep`: open turns wait and go on; `abort`: they end with an error that clients retry."""


class UpdateBody(ResumeBody, forbid_unknown_fields=True):
    """Loads other weights in a model's engines."""

    source: Annotated[str, Meta(min_length=1)]
    """The directory that has them, below the workers' `weights_dir`."""
    version: Annotated[int, Meta(ge=1, le=2**53 - 1)]
    """The number of the weights, greater than that of every worker's. Workers that have loaded it
    from this source have done it already."""


class Workers(Struct, frozen=True):
    """All workers of the model, after the operation."""

    workers: list[EngineState]
