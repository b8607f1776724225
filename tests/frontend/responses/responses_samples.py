"""Makes values of the SDKs' request types with every field set and a different value in each
leaf."""

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

_MAX_DEPTH = 8


class Sampler:
    """Makes samples. `leaves`: the path of each string and number; `choices`: the paths of values
    that are not unique."""

    def __init__(self) -> None:
        self.leaves: dict[str | int, str] = {}
        self.choices: set[str] = set()
        self._numbers = count(70001)

    def of(self, hint: Any, path: str = "", depth: int = 0) -> list[Any]:
        """Samples of a type: one, or several if it has alternative forms."""
        if depth > _MAX_DEPTH:
            return []
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Required, NotRequired):
            return self.of(arguments[0], path, depth)
        if origin in (Union, types.UnionType):
            return [
                value
                for each in arguments
                if each is not type(None)
                for value in self.of(each, path, depth)
            ]
        if origin is Literal:
            self.choices.add(path)
            return list(arguments)
        if is_typeddict(hint):
            return self._dicts(hint, path, depth)
        if hint in (Any, object):
            return [{"key": self._leaf(f"§{next(self._numbers)}", path)}]
        if hint is str and path.endswith(("name", "file_data", "source.data")):
            # Only characters that are valid in names and base64; the leaf is its number.
            return [
                f"x{self._leaf(next(self._numbers), path)}"
                + ("==" if path.endswith("data") else "")
            ]
        if hint is str and path.endswith(
            "format.definition"
        ):  # a grammar, and a regular expression
            return [f'start: "{self._leaf(f"§{next(self._numbers)}", path)}"']
        if hint is str:
            return [self._leaf(f"§{next(self._numbers)}", path)]
        if getattr(hint, "__name__", "") in (
            "IO",
            "PathLike",
        ):  # the SDK sends its content, as text
            return []
        if hint in (int, float):
            return [self._leaf(next(self._numbers), path)]
        if hint is bool:
            self.choices.add(path)
            return [True]
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return [{"key": value} for value in self.of(arguments[1], path, depth)]
        if _is_list(hint, origin):
            return [[value] for value in self.of(arguments[0], f"{path}[]", depth)]
        raise AssertionError(f"no sample of {hint} at {path}")

    def _dicts(self, hint: Any, path: str, depth: int) -> list[Any]:
        fields = {
            name: self.of(each, f"{path}.{name}" if path else name, depth + 1)
            for name, each in get_type_hints(hint, include_extras=True).items()
        }
        first = {name: values[0] for name, values in fields.items() if values}
        others = [{**first, name: value} for name, values in fields.items() for value in values[1:]]
        return [first, *others]

    def _leaf(self, value: Any, path: str) -> Any:
        self.leaves[value] = path
        return value


def _is_list(hint: Any, origin: Any) -> bool:
    named = getattr(hint, "__name__", "") or str(origin)
    return "SequenceNotStr" in named or (isinstance(origin, type) and issubclass(origin, Iterable))


def leaves_in(text: str) -> Iterator[str | int]:
    """The leaves of samples in a text."""
    for found in re.findall(r"§?7\d{4}(?!\d)", text):
        yield found if found.startswith("§") else int(found)
