"""`turnwire secrets DIR`: every secret of a deployment, made once, each service's own in a directory of its own.

DIR/SERVICE/nats.password   for SERVICE's user on the bus (TURNWIRE_NATS_PASSWORD_FILE)
DIR/preprocessor/seal.key   the key that seals reasoning (TURNWIRE_SEAL_KEY_FILE), the same file in DIR/parser and
                            DIR/frontend, where it seals the summaries of compaction
DIR/nats/passwords.conf     what deploy/nats/nats.conf includes
DIR/tap/nats.password       for `turnwire tap`

What is there already stays, so that it can run before every start.
"""

import argparse
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from services.runtime.config import STAGES
from services.runtime.config_flags import parse_arguments

USERS = (*STAGES, "tap")


def main(argv: Sequence[str]) -> int:
    """Makes what is missing; prints nothing secret."""
    parser = argparse.ArgumentParser(
        prog="turnwire secrets",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path)
    directory: Path = parse_arguments(parser, argv).directory
    make_secrets(directory)
    print(f"secrets are in {directory}")
    return 0


def make_secrets(directory: Path) -> None:
    """Makes every secret that is not there yet. Raises OSError where it cannot."""
    for user in (*USERS, "nats"):
        (directory / user).mkdir(parents=True, exist_ok=True, mode=0o700)
    passwords = {user: keep(directory / user / "nats.password", secrets.token_hex(24)) for user in USERS}
    seal = keep(directory / "preprocessor" / "seal.key", secrets.token_hex(32))
    for user in ("parser", "frontend"):
        write(directory / user / "seal.key", seal)
    lines = [f'{user.upper()}_PASSWORD: "{password.strip()}"\n' for user, password in passwords.items()]
    write(directory / "nats" / "passwords.conf", "".join(lines))


def keep(path: Path, fresh: str) -> str:
    """The file's text; the file is made with `fresh` if it is not there."""
    if not path.exists():
        write(path, fresh + "\n")
    return path.read_text()


def write(path: Path, text: str) -> None:
    """A file for its owner only, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    partial.replace(path)
