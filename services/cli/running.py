"""The instances of `turnwire up` on this machine: other commands find the newest one without an address.

Each has a file in the user's state directory, which it keeps locked: one without a lock was left by a killed instance.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

DEFAULT_URL = "http://127.0.0.1:8000"
"""Where a frontend listens by default."""
CONNECT_S = 5.0


class Instance(msgspec.Struct, frozen=True):
    """A running `turnwire up`; also the content of its `--ready-file`."""

    url: str
    urls: Sequence[str]
    model: str
    pid: int
    nats_url: str
    model_dir: str = ""
    """Directory or hub id of the model: where a command finds its tokenizer."""


@contextmanager
def announced(instance: Instance, env: Mapping[str, str]) -> Iterator[None]:
    """Lets other commands find the instance, where the state directory can be written."""
    path = _directory(env) / f"{instance.pid}.json"
    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            file = stack.enter_context(open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"))
            file.write(msgspec.json.encode(instance) + b"\n")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            new.replace(path)  # locked from its first moment
            stack.callback(path.unlink, missing_ok=True)
        yield


def newest(env: Mapping[str, str]) -> Instance | None:
    """The instance that was started last; None if none runs."""
    with suppress(OSError):
        for path in sorted(_directory(env).glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
            if (instance := _running(path)) is not None:
                return instance
    return None


def bus_defaults(env: Mapping[str, str]) -> dict[str, Any]:
    """Defaults of `BusConfig` for a command at which someone waits: the newest instance's bus, and a shorter limit."""
    instance = newest(env)
    return {"connect_timeout_s": CONNECT_S} | ({"nats_url": instance.nats_url} if instance is not None else {})


def server_url(url: str | None, env: Mapping[str, str]) -> str:
    """The address of the server that a command uses: the one passed, else that of the newest instance."""
    instance = None if url else newest(env)
    return url or (instance.url if instance is not None else DEFAULT_URL)


def program() -> str:
    """How a shell calls this installation's `turnwire`: by name where that is found, else by path."""
    own = Path(sys.executable).with_name("turnwire")
    if not own.exists():
        return "turnwire"
    found = shutil.which("turnwire")
    if found is not None and os.path.samefile(found, own):
        return "turnwire"
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)


def default_state_dir(env: Mapping[str, str]) -> Path:
    """`turnwire` in the user's state directory (XDG Base Directory Specification)."""
    base = env.get("XDG_STATE_HOME") or ""
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "turnwire"


def _directory(env: Mapping[str, str]) -> Path:
    return default_state_dir(env) / "running"


def _running(path: Path) -> Instance | None:
    """The instance of a file; None, and the file is removed, if it does not run."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(file.read(), type=Instance)
            return None
        path.unlink(missing_ok=True)
    return None
