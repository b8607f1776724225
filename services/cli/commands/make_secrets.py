"""`turnwire secrets DIR`: makes the secrets of a deployment, with a directory for each service."""

import secrets
from collections.abc import Sequence
from pathlib import Path

from services.cli.common import make_private, replace_file
from services.cli.registry import Command
from services.runtime.config.tables import STAGES

USERS = (*STAGES, "setup", "tap")


def make(directory: Path, /) -> int:
    """Makes every secret of a deployment once, each service's own in a directory of its own.

    - `SERVICE/nats.password`: the password of a service's user on the bus
      (TURNWIRE_NATS_PASSWORD_FILE).
    - `tap/nats.password`, `setup/nats.password`: the same for `turnwire tap` and `turnwire
      buckets`.
    - `SERVICE/heartbeat.key`: the key that authenticates heartbeats (TURNWIRE_HEARTBEAT_KEY_FILE),
      the same file for all services.
    - `preprocessor/seal.key`: the key that seals reasoning (TURNWIRE_SEAL_KEY_FILE). The same file
      is in `parser` and in `frontend`, where it seals the summaries of compaction.
    - `nats/passwords.conf`: included by `deploy/nats/nats.conf`.

    The contents of existing files stay, so that the command can run before every start.

    Args:
        directory: Where to write the files.
    """
    make_secrets(directory)
    print(f"secrets are in {directory}")
    return 0


COMMAND = Command(make)


def make_secrets(directory: Path) -> None:
    """Makes the secrets that do not exist yet. Raises OSError."""
    for user in (*USERS, "nats"):
        (directory / user).mkdir(parents=True, exist_ok=True, mode=0o700)
    passwords = {
        user: keep_or_make(directory / user / "nats.password", secrets.token_hex(24))
        for user in USERS
    }
    _share(directory, "seal.key", ("preprocessor", "parser", "frontend"))
    _share(directory, "heartbeat.key", tuple(STAGES))
    lines = [
        f'{user.upper()}_PASSWORD: "{password.strip()}"\n' for user, password in passwords.items()
    ]
    _write(directory / "nats" / "passwords.conf", "".join(lines))


def _share(directory: Path, name: str, users: Sequence[str]) -> None:
    """Makes a key that several users share. If the first user's file exists, the others get its
    key."""
    key = keep_or_make(directory / users[0] / name, secrets.token_hex(32))
    for user in users[1:]:
        _write(directory / user / name, key)


def keep_or_make(path: Path, secret: str) -> str:
    """The text of the file. If there is none, makes it with `secret`. Not all users can read it
    afterwards."""
    if not path.exists():
        replace_file(path, secret.encode() + b"\n")
    make_private(path)
    return path.read_text()


def _write(path: Path, text: str) -> None:
    """Writes a file that has another text, or is new, and makes it private."""
    if not path.exists() or path.read_text() != text:
        replace_file(path, text.encode())
    make_private(path)
