"""Published templates out of the `trl` package, which without its own dependencies is data."""

import importlib.util
from pathlib import Path


def _find() -> dict[str, Path]:
    spec = importlib.util.find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    return {file.stem: file for file in sorted(folder.glob("*.jinja")) if not file.stem.endswith("_training")}


REAL_TEMPLATES = _find()
"""File by name; none where the package is not installed."""
