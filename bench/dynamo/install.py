"""`python -m bench.dynamo.install`: installs Dynamo from PyPI, into an environment of its own.

`TURNWIRE_PEERS` is the directory of peers, by default in the user's cache. The environment is kept,
and made again when the required version changes.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from bench.dynamo import VERSION
from bench.stack import PEERS

DYNAMO = (f"ai-dynamo=={VERSION}", f"ai-dynamo-runtime=={VERSION}")
"""Installed without dependencies: one of them, which only the planner needs, is not on PyPI."""
NEEDED = (
    "aiohttp>=3.14.3,<4",
    "certifi",
    "kubernetes>=32.0.1,<33",
    "msgspec>=0.19",
    "prometheus-client>=0.23.1,<1",
    "psutil",
    "pydantic>=2.10.6,<=2.13.5",
    "pyzmq>=26",
    "redis>=6.2,<9",
    "tokenizers",
    "tqdm",
    "transformers>=4.56",
    "uvloop>=0.21",
    "zstandard>=0.23,<1",
)
"""Packages that its frontend and a worker import, in the versions that its wheels require."""


def install(say: Callable[[str], None]) -> Path:
    """Makes the environment unless it exists; returns its Python.

    Raises subprocess.CalledProcessError if pip fails, OSError if the directory cannot be written.
    """
    peers = Path(os.environ.get(PEERS) or Path.home() / ".cache" / "turnwire-peers")
    where = peers / "dynamo" / "venv"
    python, done = where / "bin" / "python", where / f"dynamo-{VERSION}"
    if not done.exists():
        say(f"installing Dynamo {VERSION} into {where}")
        venv.create(where, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", *DYNAMO], check=True)
        subprocess.run([*pip, *NEEDED], check=True)
        done.touch()
    return python


if __name__ == "__main__":
    try:
        print(install(lambda line: print(line, file=sys.stderr)))
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"bench.dynamo.install: {error}")
