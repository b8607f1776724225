"""`turnwire catalog codex`: writes the model catalogue, without which Codex uses a fallback profile
(docs/clients.md).

The entries come from a running server or from a model's files. The frontend serves the same
document under `/codex/models.json`. A file is for a Codex that cannot reach the server when it
starts, or that uses its own profiles.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from schemas.control import ModelCard
from services.cli.common import CommandError, UsageError
from services.cli.connect.server import ServerError, read_models
from services.cli.instances import server_url
from services.cli.registry import Command
from services.frontend.apis.models.codex_profile import (
    Profile,
    assign_profiles,
    catalogue,
    profiles_of,
    with_profile,
)
from services.runtime.config.base import Count
from services.runtime.config.names import KEY_VARIABLE
from services.runtime.config.stages import PreprocessorConfig

DEFAULT_PROFILE = "gpt-5.5"
"""The newest profile of Codex with plain tools: later ones require a model that calls tools in
JavaScript."""
CODEX_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class CatalogFlags:
    """The flags of `turnwire catalog`."""

    url: str | None = None
    """Address of the server; default: the newest `turnwire up` on this machine, else port 8000."""
    key: Annotated[str | None, Parameter(env_var=KEY_VARIABLE)] = None
    """API key for the server."""
    model: list[str] | None = None
    """Only this model of the server; may be repeated."""
    model_dir: str | None = None
    """Directory or hub id: make the catalogue from a model's files, without a server."""
    max_model_len: Count | None = None
    """With --model-dir: the context window in tokens."""
    bundled: Annotated[str | None, Parameter(name="--from")] = None
    """Use the profiles of Codex itself: path of the program, or of a file with its catalogue."""
    profile: list[str] | None = None
    """With --from: use this profile: SLUG for all models or NAME=SLUG for one; may be repeated.
    Default: gpt-5.5."""
    output: Annotated[str | None, Parameter(alias="-o")] = None
    """Write to this file instead of stdout."""


def catalog(
    client: Literal["codex"],
    /,
    *,
    flags: Annotated[CatalogFlags, Parameter(name="*")] = CatalogFlags(),
) -> int:
    """Writes the model catalogue that Codex needs for models that it does not know.

    Args:
        client: The client to write for.
    """
    document = make(flags)
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    if flags.output is None:
        sys.stdout.write(text)
    else:
        Path(flags.output).write_text(text, encoding="utf-8")
        slugs = ", ".join(model["slug"] for model in document["models"])
        path = msgspec.json.encode(str(Path(flags.output).resolve())).decode()
        print(
            f"{flags.output}: {slugs}; in Codex' config.toml: model_catalog_json = {path}",
            file=sys.stderr,
        )
    return 0


COMMAND = Command(catalog)


def make(flags: CatalogFlags) -> dict[str, Any]:
    """Makes the catalogue for these flags.

    Raises UsageError for a name or profile that does not exist; CommandError, TurnwireError or
    OSError if the server, a file or Codex cannot be read.
    """
    if flags.model_dir is not None:
        entries = from_files(flags.model_dir, flags.model or [], flags.max_model_len)
    else:
        server = read_models(server_url(flags.url, os.environ), flags.key)
        for name in flags.model or []:
            server.choose(name)
        entries = [
            entry for entry in server.catalogue if not flags.model or entry["slug"] in flags.model
        ]
        if not entries:
            server.require_models()
            raise ServerError(f"{server.url} has no catalogue of its models")
    if flags.bundled is None:
        if flags.profile:
            raise UsageError("--profile requires --from: the profiles are Codex' own")
        return {"models": entries}
    profiles = codex_profiles(flags.bundled)
    return {"models": with_profiles(entries, profiles, flags.profile or [])}


def with_profiles(
    entries: Sequence[dict[str, Any]], profiles: dict[str, Profile], flags: Sequence[str]
) -> list[dict[str, Any]]:
    """The entries with profiles of Codex. Raises UsageError for a name or profile that does not
    exist."""
    names = [entry["slug"] for entry in entries]
    chosen = {"*": DEFAULT_PROFILE} if DEFAULT_PROFILE in profiles else {}
    chosen |= {name or "*": slug for name, _, slug in (flag.rpartition("=") for flag in flags)}
    unknown = chosen.keys() - {*names, "*"}
    if unknown:
        raise UsageError(
            f"--profile: there is no model {', '.join(sorted(unknown))}, only {', '.join(names)}"
        )
    try:
        assigned = assign_profiles(profiles, chosen, names)
    except ValueError as error:
        raise UsageError(error) from None
    return [with_profile(entry, assigned.get(entry["slug"])) for entry in entries]


def from_files(model: str, names: Sequence[str], max_model_len: int | None) -> list[dict[str, Any]]:
    """Makes entries for a model that is not served yet. Raises CommandError, TurnwireError or
    OSError."""
    from services.preprocessor.model.model_setup import (
        ModelSetup,  # transformers takes 1.5 s to import
    )

    config = PreprocessorConfig(
        model=model, served_model_name=",".join(names) or None, max_model_len=max_model_len
    )
    try:
        card: ModelCard = ModelSetup.load(config).card
    except ValueError as error:
        raise CommandError(f"{model}: {error}") from error
    entries: list[dict[str, Any]] = catalogue((card, name) for name in (card.name, *card.aliases))[
        "models"
    ]
    return entries


def codex_profiles(source: str) -> dict[str, Profile]:
    """Reads profiles from a Codex program, by path or name, or from a file with its output.

    Raises CommandError or OSError.
    """
    path = Path(source).expanduser()
    if path.is_file() and not os.access(path, os.X_OK):
        data = path.read_bytes()
    elif (program := shutil.which(str(path))) is not None:
        command = [program, "debug", "models", "--bundled"]
        try:
            data = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, timeout=CODEX_TIMEOUT_S
            ).stdout
        except subprocess.SubprocessError as error:
            raise CommandError(error) from error
    else:
        raise FileNotFoundError(f"no file and no program is named {source}")
    try:
        return profiles_of(msgspec.json.decode(data))
    except ValueError as error:
        raise CommandError(f"{source}: {error}") from None
