"""How far two sequences agree from their start."""

from array import array
from typing import TypeVar

S = TypeVar("S", str, "array[int]")


def common_prefix(one: S, other: S) -> S:
    """What both begin with. Slices are compared whole: 50,000 elements cost 16 comparisons, and no loop of Python's."""
    if one[: len(other)] == other:
        return other
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return one[:low]
