"""Log probabilities for an engine that has none: made up, but such as a model's could be."""

from math import exp, log

_FALL = 0.7
"""Each alternative is so much less likely than the one before it."""


def made_up(token: int, at: int, top: int, vocabulary: int) -> list[tuple[int, float]]:
    """The token at output index `at` and `top` others, (id, log probability) each, likeliest first.

    The same for the same arguments, in whichever process; the probabilities of one place add up to less than 1, and the
    written token is the likeliest.
    """
    chance = 0.75 + 0.24 * ((token * 2654435761 + at * 40503) % 1000) / 1000
    rest = log((1.0 - chance) * (1.0 - exp(-_FALL)))
    others = [(token + 1 + n * 7) % vocabulary for n in range(min(top, max(vocabulary // 7 - 1, 0)))]
    return [(token, log(chance)), *((other, rest - _FALL * n) for n, other in enumerate(others))]
