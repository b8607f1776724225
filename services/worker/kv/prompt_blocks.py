"""The KV blocks of a prompt, as a worker sees them when its turn arrives."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from services.worker.kv.judge import Prediction


class NoBlocks(Struct, frozen=True):
    """Prompts share no blocks."""

    cached: None = None


class ReportedBlocks(Struct, frozen=True):
    """The engine reports its blocks."""

    cached: int
    """How many tokens of the prompt the engine will find in its cache."""
    prediction: Prediction | None
    """The prediction to compare with what the engine finds; None: nothing is compared."""


class AssumedBlocks(Struct, frozen=True):
    """The engine reports no blocks, so that the worker assumes what the cache does."""

    cached: int
    """How many tokens of the prompt the engine will find in its cache."""
    keys: Sequence[int]
    """The keys of the prompt's whole blocks."""
    tail: bytes
    """The ids after the whole blocks (`pack_ids`)."""
    salt: str | None


PromptBlocks: TypeAlias = NoBlocks | ReportedBlocks | AssumedBlocks

NO_BLOCKS: Final = NoBlocks()
