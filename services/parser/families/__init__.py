"""One file per family: the raw form quoted, the grammar as data, what is special about it."""

from services.parser.families import hermes, nemotron_v3, qwen3_coder
from services.parser.family import Family

ALL: tuple[Family, ...] = (qwen3_coder.FAMILY, nemotron_v3.FAMILY, hermes.FAMILY)
"""Most used first."""
