"""Installs a package with entry points, as pip would."""

from pathlib import Path


def install(folder: Path, module: str, source: str, group: str, *entry_points: str) -> None:
    """Writes a package of one module into a folder, which the caller adds to `sys.path`."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join((f"[{group}]", *entry_points, "")))
