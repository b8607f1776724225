"""`turnwire secrets DIR`: makes the secrets of a deployment, in a directory for each service."""

import secrets
from pathlib import Path

from services.cli.files import replace_file
from services.runtime.config import STAGES

USERS = (*STAGES, "tap")


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
        replace_file(directory / user / "seal.key", seal.encode())
    lines = [f'{user.upper()}_PASSWORD: "{password.strip()}"\n' for user, password in passwords.items()]
    replace_file(directory / "nats" / "passwords.conf", "".join(lines).encode())


def keep(path: Path, fresh: str) -> str:
    """The text of the file, which is made with `fresh` if it does not exist."""
    if not path.exists():
        replace_file(path, fresh.encode() + b"\n")
    return path.read_text()
