"""`turnwire catalog codex`: the model catalogue that keeps Codex off its fallback profile (docs/clients.md).

From a running server, or from a model's files with no server. The frontend serves the same document under
`/codex/models.json`; a file is for a Codex that cannot reach the server when it starts, or wants a profile of its own.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from schemas.control import ModelCard
from services.cli.served import DEFAULT_URL, CannotAsk, ask
from services.frontend.dialects.codex_profile import Profile, assigned, catalogue, profiles_of, reprofiled
from services.runtime.config import PreprocessorConfig
from services.runtime.config_flags import parse_arguments

DEFAULT_PROFILE = "gpt-5.5"
"""Codex' newest profile with plain tools: later ones want a model that writes JavaScript to call tools."""
CODEX_TIMEOUT_S = 30.0


def main(argv: Sequence[str]) -> int:
    """Writes the catalogue; status 1 where a server or a file does not answer, 2 for a profile that is not there."""
    parser = argparse.ArgumentParser(prog="turnwire catalog", allow_abbrev=False, description=__doc__)
    parser.add_argument("client", choices=["codex"])
    parser.add_argument("--url", default=DEFAULT_URL, help="the server [default: %(default)s]")
    parser.add_argument(
        "--key", default=os.environ.get("TURNWIRE_API_KEY"), help="a key of the server; TURNWIRE_API_KEY"
    )
    parser.add_argument("--model", action="append", metavar="NAME", help="only this served name; may be repeated")
    parser.add_argument("--model-dir", metavar="DIR_OR_ID", help="make it from a model's files, with no server")
    parser.add_argument("--max-model-len", type=int, metavar="N", help="with --model-dir: the context window in tokens")
    parser.add_argument(
        "--from", dest="bundled", metavar="CODEX", help="take profiles of Codex' own: its program, or a saved catalogue"
    )
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="[NAME=]SLUG",
        help=f"with --from: the profile of a name, or of all [default: {DEFAULT_PROFILE}]",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")
    arguments = parse_arguments(parser, argv)
    try:
        document = make(arguments)
    except LookupError as error:
        print(f"turnwire catalog: {error.args[0]}", file=sys.stderr)
        return 2
    except (CannotAsk, OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"turnwire catalog: {error}", file=sys.stderr)
        return 1
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        Path(arguments.output).write_text(text, encoding="utf-8")
        slugs = ", ".join(model["slug"] for model in document["models"])
        print(f"{arguments.output}: {slugs}; in Codex' config.toml: {as_setting(arguments.output)}", file=sys.stderr)
    return 0


def make(arguments: argparse.Namespace) -> dict[str, Any]:
    """The catalogue that the command line asks for.

    Raises LookupError for a name or profile that is not there, CannotAsk, OSError, ValueError or SubprocessError where
    the server, a file or Codex does not answer.
    """
    if arguments.model_dir is not None:
        entries = from_files(arguments.model_dir, arguments.model or [], arguments.max_model_len)
    else:
        served = ask(arguments.url, arguments.key)
        for name in arguments.model or []:
            served.choose(name)
        entries = [entry for entry in served.catalogue if not arguments.model or entry["slug"] in arguments.model]
        if not entries:
            raise CannotAsk(f"{served.url} serves no model")
    if arguments.bundled is None:
        if arguments.profile:
            raise LookupError("--profile wants --from: the profiles are in Codex")
        return {"models": entries}
    profiles = bundled(arguments.bundled)
    return {"models": with_profiles(entries, profiles, arguments.profile)}


def with_profiles(
    entries: Sequence[dict[str, Any]], profiles: dict[str, Profile], asked: Sequence[str]
) -> list[dict[str, Any]]:
    """The entries with profiles of Codex' own. Raises LookupError for one that is not there."""
    wishes = {name or "*": slug for name, _, slug in (one.rpartition("=") for one in asked)}
    if "*" not in wishes and DEFAULT_PROFILE in profiles:
        wishes["*"] = DEFAULT_PROFILE
    try:
        own = assigned(profiles, wishes, [entry["slug"] for entry in entries])
    except ValueError as error:
        raise LookupError(str(error)) from None
    return [reprofiled(entry, own.get(entry["slug"])) for entry in entries]


def from_files(model: str, names: Sequence[str], max_model_len: int | None) -> list[dict[str, Any]]:
    """Entries for a model that nobody serves yet. Raises OSError or ValueError."""
    from services.preprocessor.model import ModelSetup  # transformers takes 1.5 s to import

    config = PreprocessorConfig(model=model, served_model_name=",".join(names) or None, max_model_len=max_model_len)
    card: ModelCard = ModelSetup.load(config).card
    entries: list[dict[str, Any]] = catalogue((card, name) for name in (card.name, *card.aliases))["models"]
    return entries


def bundled(source: str) -> dict[str, Profile]:
    """The profiles of a Codex: of its program, by path or name, or of a file that was saved from it.

    Raises OSError, ValueError or SubprocessError.
    """
    path = Path(source).expanduser()
    if path.is_file() and not os.access(path, os.X_OK):
        data = path.read_bytes()
    else:
        program = shutil.which(str(path))
        if program is None:
            raise FileNotFoundError(f"there is no file and no program {source}")
        command = [program, "debug", "models", "--bundled"]
        data = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=CODEX_TIMEOUT_S).stdout
    try:
        return profiles_of(msgspec.json.decode(data))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def as_setting(path: str) -> str:
    """The line of config.toml that names a catalogue."""
    return f"model_catalog_json = {msgspec.json.encode(str(Path(path).resolve())).decode()}"
