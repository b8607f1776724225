"""Compares the weights of two checkpoints by name and shape, without reading them.

vLLM 0.32 keeps the old ones of weights that are missing, and notices it only in its log.
"""

from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import Invalid

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the format's own library."""
_METADATA = "__metadata__"
_TIED = "lm_head.weight"
"""Left out, or not, where it is the same as the embedding."""

_Shapes = dict[str, list[int]]


def check_checkpoint(source: str, loaded: str) -> None:
    """Raises Invalid if the directory `source` has other weights than `loaded` ("": not known). A
    directory that is not on this machine is not compared."""
    if not Path(source).parent.is_dir():
        return
    new, old = _shapes(Path(source)), _shapes(Path(loaded)) if loaded else {}
    if not new:
        raise Invalid(f"{source} has no weights (*.safetensors)", param="source")
    missing = sorted(old.keys() - new.keys() - {_TIED})
    if missing:
        raise Invalid(f"{source} lacks {missing[0]}", param="source")
    for name, shape in old.items():
        if new.get(name, shape) != shape:
            raise Invalid(f"{name} has the shape {new[name]}, not {shape}", param="source")


def _shapes(folder: Path) -> _Shapes:
    """The shape of each weight. Raises Invalid for a file that cannot be read."""
    shapes = _Shapes()
    for file in folder.glob("*.safetensors"):
        try:
            shapes |= _file_shapes(file)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise Invalid(f"{file} cannot be read: {error}", param="source") from error
    return shapes


def _file_shapes(file: Path) -> _Shapes:
    with file.open("rb") as data:
        length = int.from_bytes(data.read(_LENGTH_BYTES), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError("it is not a safetensors file")
        header: dict[str, Any] = msgspec.json.decode(data.read(length), type=dict[str, Any])
    header.pop(_METADATA, None)
    return {name: weight["shape"] for name, weight in header.items()}
