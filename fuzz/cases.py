"""A generation to parse, and its encoding as the bytes of a fuzzed input.

Layout: family, flags, tools, finish reason, seed of the cuts, share of the text that is in the
prompt; then the text.
"""

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from fuzz.toolsets import toolset
from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import TurnParser, families, open_parser
from tests.kit.parser_cases import tools

HEADER: Final = 6
REASONS: Final = tuple(FinishReason)
FAMILIES: Final = tuple(sorted(families()))
_IN_REASONING: Final = 1
_CALLS_AS_TEXT: Final = 6  # both bits: one input in four


@dataclass(frozen=True)
class Case:
    """One generation. `seed` decides the cuts."""

    family: str
    raw: str
    tools: tuple[ToolSpec, ...] = ()
    in_reasoning: bool = False
    reason: FinishReason = FinishReason.STOP
    prefix: str = ""
    calls_as_text: bool = False
    seed: int = 0

    def open(self) -> TurnParser:
        """A parser for the generation."""
        return open_parser(
            self.family,
            tools=list(self.tools),
            in_reasoning=self.in_reasoning,
            prefix=self.prefix,
            calls_as_text=self.calls_as_text,
        )

    def pieces(self) -> list[str]:
        """The text, cut at random."""
        chance, text, at = Random(self.seed), self.raw, 0
        pieces: list[str] = []
        while at < len(text):
            size = chance.choice((1, 1, 2, 3, 5, 8, 40))
            pieces.append(text[at : at + size])
            at += size
        return pieces


def decode(data: bytes) -> Case:
    """Decodes any bytes to a case."""
    family, flags, tool_set, reason, seed, share = data[:HEADER].ljust(HEADER, b"\0")
    text = data[HEADER:].decode("utf-8", "replace")
    cut = len(text) * share // 256
    return Case(
        family=FAMILIES[family % len(FAMILIES)],
        raw=text[cut:],
        tools=toolset(tool_set),
        in_reasoning=bool(flags & _IN_REASONING),
        reason=REASONS[reason % len(REASONS)],
        prefix=text[:cut],
        calls_as_text=flags & _CALLS_AS_TEXT == _CALLS_AS_TEXT,
        seed=seed,
    )


def encode(vector: dict[str, Any], seed: int = 0) -> bytes:
    """Encodes a vector; its tools become those of all vectors."""
    header = (
        FAMILIES.index(vector["family"]),
        _IN_REASONING * vector["prompt_ends_in_reasoning"],
        1 if vector["tools"] else 0,
        REASONS.index(FinishReason(vector["finish_reason"])),
        seed % 256,
        0,
    )
    return bytes(header) + str(vector["raw"]).encode()


def from_vector(vector: dict[str, Any]) -> Case:
    """The case of a vector, or of a finding, which may also have `prefix` and `calls_as_text`."""
    return Case(
        family=vector["family"],
        raw=vector["raw"],
        tools=tuple(tools(vector)),
        in_reasoning=vector["prompt_ends_in_reasoning"],
        reason=FinishReason(vector["finish_reason"]),
        prefix=vector.get("prefix", ""),
        calls_as_text=vector.get("calls_as_text", False),
        seed=vector.get("seed", 0),
    )
