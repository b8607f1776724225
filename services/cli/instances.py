"""Finds the instances of `turnwire up` on this machine, so that other commands need no address.

Each instance has a file in the user's state directory and keeps it locked. A file without a lock
was left by a killed instance.
"""

import fcntl
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from services.cli.common import CommandError, replace_file
from services.runtime.config.loader import Sources
from services.runtime.config.service import BusConfig

DEFAULT_URL = "http://127.0.0.1:8000"
"""The default address of a frontend."""
CONNECT_S = 5.0
GUESS_S = 0.2
"""Longest time to connect to the default bus."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A running `turnwire up`. Its `--ready-file` has the same content."""

    url: str
    urls: Sequence[str]
    model: str
    pid: int
    nats_url: str
    model_dir: str = ""
    """Directory or hub id of the model, with its tokenizer."""
    models: list[str] = []
    """The names of all models; `model` is the first one."""
    own_bus: bool = False
    """Whether it runs nats-server, and makes the buckets."""
    model_dirs: dict[str, str] = {}
    """Directory or hub id of each model, by its name."""
    state_dir: str = ""


@contextmanager
def announce(instance: Instance, env: Mapping[str, str]) -> Iterator[None]:
    """Lets other commands find the instance, if the state directory can be written."""
    path = _directory(env) / f"{instance.pid}.json"
    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            file = stack.enter_context(
                open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
            )
            os.fchmod(file.fileno(), 0o600)  # an earlier run may have left it
            file.write(msgspec.json.encode(instance) + b"\n")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            new.replace(path)  # so that it is locked from the start
            stack.callback(path.unlink, missing_ok=True)
        yield


def write_ready_file(path: Path, instance: Instance) -> None:
    """Writes the file that reports a ready server. With a login of the bus in it, only its owner
    can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if "@" in instance.nats_url else 0o666
    replace_file(path, msgspec.json.encode(instance) + b"\n", mode)


def running_instances(env: Mapping[str, str]) -> Iterator[Instance]:
    """Yields the instances that run, the one that was started last first."""
    with suppress(OSError):
        for path in sorted(_directory(env).glob("*.json"), key=_time_of_start, reverse=True):
            instance = _read(path)
            if instance is not None:
                yield instance


def _time_of_start(path: Path) -> int:
    return path.stat().st_mtime_ns


def newest_instance(env: Mapping[str, str]) -> Instance | None:
    """The instance that was started last; None if none runs."""
    return next(running_instances(env), None)


def instance_at(url: str | None, env: Mapping[str, str]) -> Instance | None:
    """The instance that serves this address; else, and for None, the newest one."""
    instances = list(running_instances(env))
    if url:
        address = url.replace("//localhost", "//127.0.0.1").rstrip("/").removesuffix("/v1")
        instances.sort(key=lambda instance: address not in instance.urls)
    return instances[0] if instances else None


def instance_on(nats_url: str, env: Mapping[str, str]) -> Instance | None:
    """The instance on this bus; None if there is none."""
    return next(
        (instance for instance in running_instances(env) if instance.nats_url == nats_url), None
    )


def successor_of(ended: Instance, env: Mapping[str, str]) -> Instance | None:
    """The newest instance with the state directory of one that has ended; None while that one runs,
    or if there is none."""
    running = list(running_instances(env))
    if any(instance.pid == ended.pid for instance in running):
        return None
    return next((instance for instance in running if instance.state_dir == ended.state_dir), None)


def bus_defaults(env: Mapping[str, str], url: str | None = None) -> dict[str, Any]:
    """Defaults of `BusConfig` for interactive commands: the bus of the instance at `url`, else of
    the newest one, and a short timeout."""
    defaults: dict[str, Any] = {"connect_timeout_s": CONNECT_S}
    instance = instance_at(url, env)
    if instance is not None:
        defaults["nats_url"] = instance.nats_url
    return defaults


def load_bus(sources: Sources) -> BusConfig:
    """The bus that a command watches: what the user names, else that of the newest instance, else
    the default one.

    Raises CommandError if nothing answers at the default one.
    """
    loaded = sources.load(BusConfig, bus_defaults(sources.env))
    config = loaded.config
    if loaded.origins["nats_url"] == "default" and newest_instance(sources.env) is None:
        try:
            socket.create_connection(("127.0.0.1", 4222), GUESS_S).close()
        except OSError:
            raise CommandError(
                f"no `turnwire up` runs on this machine, and no NATS server at {config.nats_url}; "
                "start one with `turnwire up`, or name the bus of another one with --nats-url"
            ) from None
    return config


def server_url(url: str | None, env: Mapping[str, str]) -> str:
    """The address of the server: `url` if passed, else that of the newest instance, else the
    default."""
    if url:
        return url
    instance = newest_instance(env)
    return DEFAULT_URL if instance is None else instance.url


def program() -> str:
    """How a shell calls this installation's `turnwire`: by name if the shell finds it, else by
    path."""
    installed = Path(sys.executable).with_name("turnwire")
    if not installed.exists():
        return "turnwire"
    path = shutil.which("turnwire")
    if path is not None and os.path.samefile(path, installed):
        return "turnwire"
    if installed.is_relative_to(Path.cwd()):
        installed = installed.relative_to(Path.cwd())
    return shlex.quote(str(installed))


def default_state_dir(env: Mapping[str, str]) -> Path:
    """`turnwire` in the user's state directory (XDG Base Directory Specification)."""
    base = Path(env.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():
        base = Path.home() / ".local" / "state"
    return base / "turnwire"


def _directory(env: Mapping[str, str]) -> Path:
    return default_state_dir(env) / "running"


def _read(path: Path) -> Instance | None:
    """The instance of a file. If it does not run, removes the file and returns None."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(file.read(), type=Instance)
            return None
        path.unlink(missing_ok=True)
    return None
