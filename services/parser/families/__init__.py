"""One file per family: the raw form quoted, the grammar as data, what is special about it."""

from importlib import import_module
from pkgutil import iter_modules

ALL = tuple(
    m.FAMILY for m in (import_module(f"{__name__}.{i.name}") for i in iter_modules(__path__)) if hasattr(m, "FAMILY")
)
