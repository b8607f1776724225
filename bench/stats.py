"""Computes quantiles. Pure."""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct


class Spread(Struct, frozen=True):
    """The distribution of a set of figures."""

    count: int
    min: float
    p50: float
    p95: float
    p99: float
    max: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """The figure at `share` (0 to 1) of an ordered sequence that is not empty: nearest rank, never
    one in between."""
    return ordered[min(len(ordered) - 1, int((len(ordered) - 1) * share + 0.5))]


def spread(figures: Iterable[float | None], digits: int = 4) -> Spread | None:
    """Returns the spread of the figures that are not None; None if there are none."""
    ordered = sorted(figure for figure in figures if figure is not None)
    if not ordered:
        return None
    cut = [round(quantile(ordered, share), digits) for share in (0, 0.5, 0.95, 0.99, 1)]
    return Spread(len(ordered), *cut)


def middle(spreads: Sequence[Spread | None]) -> Spread | None:
    """The medians over several runs; `count` is the sum."""
    known = [one for one in spreads if one is not None]
    if not known:
        return None
    cut = [
        median(getattr(one, name) for one in known) for name in ("min", "p50", "p95", "p99", "max")
    ]
    return Spread(sum(one.count for one in known), *cut)
