"""A hook of mkdocs: adds the pages that lie beside `docs/`, and the address of the repository."""

import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def on_config(config: Any) -> Any:
    """Links the repository that this clone came from, if it has an address on the web."""
    command = ["git", "remote", "get-url", "origin"]
    origin = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    address = re.sub(r"^git@([^:]+):", r"https://\1/", origin.strip()).removesuffix(".git")
    if address.startswith("https://"):
        config.repo_url = address
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, with links as from a page of `docs/`."""
    from mkdocs.structure.files import File

    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files
