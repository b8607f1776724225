"""Checks the model, and the packages of its engine."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from services.cli.common import CommandError, UsageError, describe_status
from services.runtime.config.command_line import CLEAN, USAGE
from services.tokenization.model_files import find_file, local_folder

PACKAGES = {
    "transformers": ("torch", "torch"),
    "trtllm": ("tensorrt_llm", "trtllm"),
    "vllm": ("vllm", "vllm"),
    "tracing": ("opentelemetry.exporter.otlp.proto.http", "otel"),
    "mcp": ("mcp", "mcp"),
}
"""The package that an engine, tracing or a protocol requires, and the extra that installs it."""
CONNECT_S = 1.0
"""Longest time to connect to the hub, or to the bus: a wrong address ends the start within three
seconds."""
NO_TOOLS = ", a template without tools"
_NOT_A_TOKENIZER = frozenset(
    {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
)
_TOKENIZER = re.compile(r"token|vocab|spiece|sentencepiece|tekken")
"""Parts of the names of files that hold a tokenizer."""


def engine_problem(engine: str) -> str | None:
    """Which package for an engine, or for tracing, is not installed; None if all are."""
    package, extra = PACKAGES.get(engine, ("", ""))
    with suppress(ImportError):  # a parent package is missing
        if not package or importlib.util.find_spec(package) is not None:
            return None
    install = f"{sys.executable} -m pip install -e '.[{extra}]'"
    return f"{engine} needs {package}, which is not installed; in a clone: {install}"


def model_problem(model: str) -> str | None:
    """Why the model cannot be loaded from local files; None if it can, or if it may be on the
    hub."""
    if Path(model).expanduser().is_file():
        return f"{model} is a file; a model is a directory or a hub id"
    try:
        folder = local_folder(model)
    except OSError as error:
        return str(error)
    if folder is None:
        return None
    if not (folder / "config.json").is_file():
        return f"{model} has no config.json"
    names = {file.name for file in folder.iterdir()} - _NOT_A_TOKENIZER
    return None if any(map(_TOKENIZER.search, names)) else f"{model} has no tokenizer.json"


def require_model(flags: Iterable[str]) -> bool:
    """Tries the model as `turnwire check` does with these flags; returns whether its template lists
    tools. Raises CommandError with the problem. Uses another process: the libraries that read a
    model leave 90 MB allocated."""
    command = [sys.executable, "-m", "services.cli.main", "check", *flags]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != CLEAN:
        problem = ran.stderr.strip().rpartition("\n")[2].removeprefix("turnwire check: ")
        if ran.returncode < 0 or not problem:
            problem = (
                f"the check of the model ended without a result: {describe_status(ran.returncode)}"
            )
        raise (UsageError if ran.returncode == USAGE else CommandError)(problem)
    return NO_TOOLS not in ran.stdout


def require_hub_model(model: str) -> None:
    """Raises OSError if a model is neither local nor on the hub: one error instead of one from each
    process."""
    try:
        if local_folder(model) is not None:
            return
        if not os.environ.get("HF_HUB_OFFLINE") and not _reaches_hub():
            os.environ["HF_HUB_OFFLINE"] = (
                "1"  # else the library tries for half a minute; files that it has do
            )
        if find_file(model, "config.json") is not None:
            return
    except ValueError:  # a name that no model of the hub can have
        pass
    raise FileNotFoundError(
        f"there is no directory {model} here, and the hub has no such model or is out of reach"
    )


def _reaches_hub() -> bool:
    """Whether the hub accepts connections. Behind a proxy that is not tested: True."""
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if hub.scheme in getproxies() or not hub.hostname:
        return True
    with suppress(OSError):
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname, port), CONNECT_S).close()
        return True
    return False
