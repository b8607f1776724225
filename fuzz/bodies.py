"""Mutates JSON bodies, for targets that read requests of an API."""

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any, Final

SCALARS: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        1e400,
        2**63,
        2**70,
        "",
        " ",
        "x",
        "\x00",
        "\ud800",
        [],
        {},
        [[]],
    ),
)
"""Values that are put anywhere."""


class Mutator:
    """Changes bodies with the keys and values of one API."""

    def __init__(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        self._keys, self._values = keys, values

    def mutate(self, data: bytes, chance: Random, seed: Callable[[], bytes]) -> bytes:
        """Another body: one of its values, keys or list items is replaced, added, moved or dropped.
        `seed` makes one instead where `data` is not JSON."""
        try:
            body = json.loads(data)
            for _ in range(chance.choice((1, 1, 2, 4))):
                body = self._changed(body, chance)
            text = json.dumps(body, ensure_ascii=chance.random() < 0.5)
        except (ValueError, RecursionError):
            return seed()
        return text.encode("utf-8", "replace")

    def _changed(self, body: Any, chance: Random) -> Any:
        places = list(_places(body))
        if not places:
            return deepcopy(chance.choice(self._values))
        holder, key = chance.choice(places)
        value = (
            chance.choice(self._values) if chance.random() < 0.6 else _at(*chance.choice(places))
        )
        value = deepcopy(value)
        action = chance.randrange(5)
        if action == 0 and chance.random() < 0.1:
            holder[key] = _nested(holder[key], chance.choice((30, 300, 800)))
        elif action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[chance.choice(self._keys)] = value
        elif action == 2 and isinstance(holder, list):
            holder.insert(key, value)
        elif action == 3 and isinstance(holder[key], str):
            text = holder[key]
            at = chance.randrange(len(text) + 1)
            holder[key] = (
                text[:at] + chance.choice((" ", "\n", "\x00", "é", "船", "x" * 300)) + text[at:]
            )
        else:
            holder[key] = value
        return body


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _at(holder: Any, key: Any) -> Any:
    return holder[key]


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield value, key
        if depth < 20:
            yield from _places(item, depth + 1)
