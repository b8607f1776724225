"""Detects the family of a model from its chat template, its tokenizer's added tokens and its
config.json."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from services.families.family import Family
from services.families.registry import families


@dataclass(frozen=True)
class Detection:
    """The detected family, the evidence for it, and other families that fit as well: they read
    about the same calls."""

    family: Family
    evidence: tuple[str, ...]
    also: tuple[Family, ...] = ()

    @property
    def statement(self) -> tuple[str, ...]:
        """The evidence and the candidates."""
        if not self.also:
            return self.evidence
        names = ", ".join(family.name for family in self.also)
        return (*self.evidence, f"{names} would fit too")


@dataclass(frozen=True)
class _Fit:
    """How well a family fits: its markup in the template, its type in config.json, its tokens in
    the vocabulary."""

    family: Family
    written: tuple[str, ...]
    type_named: bool
    tokens: tuple[str, ...]

    @property
    def markup(self) -> tuple[bool, int]:
        return bool(self.family.style.call), sum(map(len, self.written))

    @property
    def tokens_whole(self) -> bool:
        return bool(self.tokens) and len(self.tokens) == len(self.family.markers)

    @property
    def weight(self) -> tuple[bool, bool, tuple[bool, int], int]:
        return bool(self.family.style.call), self.type_named, self.markup, len(self.tokens)


def detect(
    config: Mapping[str, Any],
    template: str | None,
    tokens: Iterable[str] = (),
    among: Sequence[Family] | None = None,
) -> Detection | None:
    """Detects the family by the markup that the chat template writes; among several, `config`'s
    `model_type` decides.

    `config` is the content of config.json, `tokens` are the tokenizer's added tokens. Without a
    template (some publishers ship code instead) the type or the tokens suffice; if the template
    writes no family's markup, both must fit. `among`: the candidates, by default all families.
    Returns None if none fits.
    """
    if among is None:
        among = tuple(families().values())
    kind = _model_type(config)
    text = (template or "").replace("\\n", "\n").replace('\\"', '"')
    vocabulary = frozenset(tokens)
    candidates = _candidates([_fit(family, text, kind, vocabulary) for family in among], text)
    if not candidates:
        return None
    best = max(candidates, key=attrgetter("weight"))
    others = [fit for fit in candidates if fit.family is not best.family]
    also = tuple(fit.family for fit in others if fit.markup >= best.markup)
    return Detection(best.family, tuple(_reasons(best, kind)), also)


def _fit(family: Family, text: str, kind: str, vocabulary: frozenset[str]) -> _Fit:
    """How a family fits a template, a model type and a vocabulary."""
    is_written = all(marker in text for marker in family.evidence)
    return _Fit(
        family=family,
        written=family.evidence if is_written else (),
        type_named=kind in family.model_types,
        tokens=tuple(marker for marker in family.markers if marker in vocabulary),
    )


def _candidates(fits: Sequence[_Fit], text: str) -> list[_Fit]:
    """The fits that suffice for a template, which may be empty."""
    if not text:
        return [fit for fit in fits if fit.type_named or fit.tokens_whole]
    written = [fit for fit in fits if fit.written]
    return written or [fit for fit in fits if fit.type_named and fit.tokens_whole]


def _model_type(config: Mapping[str, Any]) -> str:
    """The type of the language model; multimodal models have it one level down."""
    inner = config.get("text_config")
    inner_type = inner.get("model_type") if isinstance(inner, Mapping) else None
    return str(config.get("model_type") or inner_type or "")


def _reasons(fit: _Fit, kind: str) -> Iterable[str]:
    if fit.written:
        yield f"the chat template writes {', '.join(map(repr, fit.written))}"
    if fit.type_named:
        yield f"config.json has model_type {kind!r}"
    if fit.tokens:
        yield f"the tokenizer has the tokens {', '.join(fit.tokens)}"
