"""`turnwire secrets DIR`: makes the secrets of a deployment, in a directory for each service."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from services.runtime.config import STAGES
from services.runtime.config.command_line import run_command

USERS = (*STAGES, "tap")


def main(argv: Sequence[str]) -> int:
    """The command `turnwire secrets`."""
    return run_command(make, "turnwire secrets", argv)


def make(directory: Path, /) -> int:
    """Makes every secret of a deployment once, each service's own in a directory of its own.

    - `SERVICE/nats.password`: the password of a service's user on the bus (TURNWIRE_NATS_PASSWORD_FILE).
    - `tap/nats.password`: the same for `turnwire tap`.
    - `preprocessor/seal.key`: the key that seals reasoning (TURNWIRE_SEAL_KEY_FILE). The same file is in `parser` and
      in `frontend`, where it seals the summaries of compaction.
    - `nats/passwords.conf`: included by `deploy/nats/nats.conf`.

    Existing files stay as they are, so that the command can run before every start.

    Args:
        directory: Where to write the files.
    """
    make_secrets(directory)
    print(f"secrets are in {directory}")
    return 0


def make_secrets(directory: Path) -> None:
    """Makes the secrets that do not exist. Raises OSError."""
    for user in (*USERS, "nats"):
        (directory / user).mkdir(parents=True, exist_ok=True, mode=0o700)
    passwords = {user: keep(directory / user / "nats.password", secrets.token_hex(24)) for user in USERS}
    seal = keep(directory / "preprocessor" / "seal.key", secrets.token_hex(32))
    for user in ("parser", "frontend"):
        write(directory / user / "seal.key", seal)
    lines = [f'{user.upper()}_PASSWORD: "{password.strip()}"\n' for user, password in passwords.items()]
    write(directory / "nats" / "passwords.conf", "".join(lines))


def keep(path: Path, fresh: str) -> str:
    """The text of the file, which is made with `fresh` if it does not exist."""
    if not path.exists():
        write(path, fresh + "\n")
    return path.read_text()


def write(path: Path, text: str) -> None:
    """Writes a file for its owner only, in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    partial.replace(path)
