"""`turnwire check`: checks the settings and the model before any process starts."""

import asyncio
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies

from schemas.errors import TurnwireError
from services.cli.common import CommandError, UsageError
from services.cli.registry import COMMON_SETTINGS, Command
from services.cli.up.servers import examine_servers, read_engine_url, read_url
from services.cli.up.supervisor import describe_status
from services.runtime.config.base import read_key, read_secret
from services.runtime.config.command_line import CLEAN, USAGE
from services.runtime.config.loader import ConfigError, LoadedConfig, Sources
from services.runtime.config.masking import mask_servers
from services.runtime.config.names import nearest, nearest_file
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.config.tables import STAGES
from services.runtime.nats.login import parse_servers, read_login, read_tls
from services.tokenization.model_files import find_file, local_folder, read_response_template

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
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "npu", "hpu")
DTYPES = ("auto", "bfloat16", "float16", "float32", "half", "float")
_NOT_A_TOKENIZER = frozenset(
    {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
)
_TOKENIZER = re.compile(r"token|vocab|spiece|sentencepiece|tekken")
"""Parts of the names of files that hold a tokenizer."""


def check(sources: Sources, /) -> int:
    """Checks the settings of every stage, and loads the model's tokenizer and chat template.

    To be run before the services start: what is wrong is reported once, as the last line, instead
    of by every process at each of its starts. A model on the hub is downloaded, except for its
    weights. Exits with status 2 if a setting is wrong, with status 1 if the model cannot be loaded.
    """
    stages = sources.load_all(STAGES)
    check_settings(stages.values())
    config: PreprocessorConfig = stages["preprocessor"].config
    try:
        require_hub_model(config.model)
    except OSError as error:
        raise ConfigError(
            [f"Invalid value for {stages['preprocessor'].origins['model']}: {error}"]
        ) from error
    try:
        # Imports the tokenizer libraries, which takes a second.
        from services.preprocessor.model import ModelSetup

        setup = ModelSetup.load(config)
    except (TurnwireError, ValueError, OSError) as error:
        raise CommandError(f"model: {' '.join(str(error).split())}") from error
    window = examine_servers(stages["worker"])
    window = min(filter(None, (window, setup.max_model_len)))
    tools = "" if setup.traits.tools else NO_TOOLS
    print(f"{setup.card.name}: {setup.family.title}, {window:,} tokens{tools}")
    return CLEAN


COMMAND = Command(check, tuple(STAGES.values()), essential=COMMON_SETTINGS)


def check_settings(stages: Iterable[LoadedConfig[Any]]) -> None:
    """Reads what the settings of stages name: files, folders, addresses, engines, parsers. Defaults
    are not checked.

    Raises ConfigError with all problems, each with the flag (or the variable, or the place in the
    file), the value, and where there is one, the nearest that would do.
    """
    problems: dict[str, None] = {}
    for loaded in stages:
        for name, value, problem in _problems(loaded):
            value_text = str(value)
            if name in ("nats_url", "engine_url"):
                value_text = mask_servers(value_text)
            text = problem
            if not isinstance(value, list | dict) and value_text not in problem:
                text = f'"{value_text}": {problem}'
            problems[f"Invalid value for {loaded.origins[name]}: {text}"] = None
    if problems:
        raise ConfigError(list(problems))


def _problems(loaded: LoadedConfig[Any]) -> Iterator[tuple[str, Any, str]]:
    """Yields name, value and problem of each setting that cannot work here."""
    chosen = {name: value for name, value in loaded.chosen().items() if value not in (None, [], {})}
    all_there = True
    for name, value in chosen.items():
        problem = _file_problem(name, value)
        if problem:
            all_there = False
            yield name, value, problem
    if not all_there:  # the readers would fail with the same
        return
    for name, value in chosen.items():
        if name not in _READERS and name not in _CONFIG_READERS:
            continue
        try:
            if value == "":
                raise ValueError('"" is empty')
            if name in _READERS:
                _READERS[name](value)
            else:
                _CONFIG_READERS[name](loaded.config)
        except (OSError, ValueError, TurnwireError) as error:
            yield name, value, " ".join(str(error).split())


def _file_problem(name: str, value: Any) -> str | None:
    """Returns why the file that a setting names cannot be read; None: it can, or names none."""
    if not name.endswith("_file") and name not in _FILES:
        return None
    path: str = value
    if name == "response_template":
        path = os.path.expanduser(path)
    if not os.path.exists(path):
        return f'there is no file "{path}"{nearest_file(path)}'
    try:
        Path(path).open("rb").close()
    except OSError as error:
        return f'"{path}" cannot be read: {error.strerror}'
    return None


def _read_keys(config: Any) -> None:
    from services.frontend.http.auth import Callers
    from services.frontend.http.keys import Limits

    Callers(config.api_keys_file, Limits(), time.monotonic)


def _read_tls(config: Any) -> None:
    from services.frontend.http.tls import Tls

    Tls.of(config)


def _read_profiles(config: Any) -> None:
    from services.frontend.apis.models.codex_profile import read_profiles

    read_profiles(config.codex_models_file, config.codex_profiles)


def _read_parser(name: str) -> None:
    from services.families.registry import find_family

    if name != "auto":
        find_family(name)


def _read_reasoning_parser(name: str) -> None:
    from services.families.registry import find_reasoning_family

    if name != "auto":
        find_reasoning_family(name)


def _read_description(config: Any) -> None:
    from services.families.registry import find_family
    from services.families.response_template import template_name

    description = read_response_template(config.model or "", config.response_template)
    find_family(template_name(description or ""))


def _read_template(config: Any) -> None:
    from jinja2 import TemplateSyntaxError

    from services.templates.jinja import environment

    try:
        environment().parse(Path(config.chat_template).read_text(encoding="utf-8"))
    except TemplateSyntaxError as error:
        raise ValueError(f"not valid Jinja: line {error.lineno}: {error.message}") from error


def _read_scripts(config: Any) -> None:
    path = Path(config.script_dir)
    if not path.is_dir():
        raise ValueError(f'there is no directory "{path}"{nearest_file(config.script_dir)}')
    for file in path.iterdir():
        if file.is_file():
            file.read_text(encoding="utf-8")


def _read_seal(config: Any) -> None:
    if not Path(config.seal_key_file).read_bytes().strip():
        raise ValueError(f'"{config.seal_key_file}" is empty')


def _read_engine(config: Any) -> None:
    from services.worker.engines.registry import (
        decodes_on_server,
        installed_engines,
        missing_engine,
    )

    problem = missing_engine(config.engine)
    if problem:
        raise ValueError(problem + nearest(config.engine, installed_engines()))
    if decodes_on_server(config.engine) and not config.engine_urls:
        raise ValueError("it needs --engine-url, the address of the inference server")
    _require(config.engine)


def _choose(engine: str, value: str, choices: Iterable[str]) -> None:
    from services.worker.engines.registry import BUILT_IN

    if engine in BUILT_IN and value not in choices:  # others have their own
        raise ValueError(f'"{value}" is not one of {", ".join(choices)}{nearest(value, choices)}')


def _read_origins(config: Any) -> None:
    for origin in config.cors_origins:
        if origin in ("*", "null"):
            continue
        parts = urlsplit(origin)
        is_origin = parts.scheme and parts.netloc and not parts.path and not parts.query
        if not is_origin:
            host = parts.netloc or origin.partition("/")[0]
            raise ValueError(
                f'"{origin}" is not an origin; did you mean "{parts.scheme or "https"}://{host}"?'
            )


def _read_hosts(names: Iterable[str]) -> None:
    for name in names:
        if "/" in name or " " in name:
            problem = f'"{name}" is not a host name'
            host = urlsplit(name if "//" in name else f"//{name}").hostname
            if host:
                problem += f'; did you mean "{host}"?'
            raise ValueError(problem)


def _read_model(config: Any) -> None:
    problem = model_problem(config.model)
    if problem:
        if not Path(config.model).expanduser().exists():
            problem += nearest_file(config.model)
        raise ValueError(problem)


def _read_credentials(config: Any) -> None:
    asyncio.run(read_login(config.bus, urlsplit("")))


def _read_bus_tls(config: Any) -> None:
    asyncio.run(read_tls(config.bus))


def _read_tracing(config: Any) -> None:
    _require("tracing" if config.tracing else "")


def _read_device(config: Any) -> None:
    _choose(config.engine, re.sub(r":\d+$", "", config.device), DEVICES)


def _read_dtype(config: Any) -> None:
    _choose(config.engine, config.dtype, DTYPES)


def _require(package: str) -> None:
    problem = engine_problem(package)
    if problem:
        raise ValueError(problem)


_FILES = ("chat_template", "response_template")
ReadSetting: TypeAlias = Callable[[Any], object]
_READERS: Mapping[str, ReadSetting] = {
    "nats_url": parse_servers,
    "nats_password_file": read_secret,
    "heartbeat_key_file": read_secret,
    "otlp_endpoint": read_url,
    "allowed_hosts": _read_hosts,
    "image_url_hosts": _read_hosts,
    "web_provider": read_url,
    "web_provider_key_file": read_key,
    "engine_api_key_file": read_key,
    "web_provider_protocol": _require,
    "family": _read_parser,
    "tool_call_parser": _read_parser,
    "reasoning_parser": _read_reasoning_parser,
}
"""Reads what a setting's value names. Raises OSError, ValueError or TurnwireError, as the stage
would at its start."""
_CONFIG_READERS: Mapping[str, ReadSetting] = {
    "model": _read_model,
    "nats_creds_file": _read_credentials,
    "nats_ca_file": _read_bus_tls,
    "nats_cert_file": _read_bus_tls,
    "tracing": _read_tracing,
    "tls_cert_file": _read_tls,
    "cors_origins": _read_origins,
    "api_keys_file": _read_keys,
    "codex_models_file": _read_profiles,
    "codex_profiles": _read_profiles,
    "seal_key_file": _read_seal,
    "chat_template": _read_template,
    "response_template": _read_description,
    "engine": _read_engine,
    "engine_url": read_engine_url,
    "script_dir": _read_scripts,
    "device": _read_device,
    "dtype": _read_dtype,
}
"""Reads what a setting names from the whole configuration. Raises likewise."""


def engine_problem(engine: str) -> str | None:
    """Returns which package for an engine, or for tracing, is not installed; None if all are."""
    package, extra = PACKAGES.get(engine, ("", ""))
    with suppress(ImportError):  # a parent package is missing
        if not package or importlib.util.find_spec(package) is not None:
            return None
    install = f"{sys.executable} -m pip install -e '.[{extra}]'"
    return f"{engine} needs {package}, which is not installed; in a clone: {install}"


def model_problem(model: str) -> str | None:
    """Returns why the model cannot be loaded from local files; None if it can, or if it may be on
    the hub."""
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
    """Whether the hub accepts connections; true behind a proxy, which the library uses."""
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if hub.scheme in getproxies() or not hub.hostname:
        return True
    with suppress(OSError):
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname, port), CONNECT_S).close()
        return True
    return False


def place_problem(path: Path, *, is_file: bool) -> str | None:
    """Returns why a directory, or a file, cannot be written at a path; None if it can."""
    parents = path.parents if is_file else (path, *path.parents)
    folder = path
    try:
        if is_file and path.is_dir():
            return f'"{path}" is a directory'
        folder = next((folder for folder in parents if folder.exists()), Path("/"))
        if not folder.is_dir():
            return f'"{path}": "{folder}" is not a directory'
        tempfile.TemporaryFile(dir=folder).close()  # a right to write is not enough, as in /proc
    except OSError as error:
        return f'"{path}": "{folder}" cannot be written to: {error.strerror}'
    return None
