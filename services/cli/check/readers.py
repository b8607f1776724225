"""Reads what settings name, as the stages do at their start: keys, templates, parsers, engines,
addresses."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from services.cli.check.model import engine_problem, model_problem
from services.cli.check.servers import read_engine_url, read_url
from services.runtime.config.base import read_key, read_secret
from services.runtime.config.names import nearest, nearest_file
from services.runtime.nats.login import parse_servers, read_login, read_tls
from services.tokenization.model_files import read_response_template

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "npu", "hpu")
DTYPES = ("auto", "bfloat16", "float16", "float32", "half", "float")
ReadSetting: TypeAlias = Callable[[Any], object]


def read_setting(name: str, value: Any, config: Any) -> None:
    """Reads what a setting of this configuration names, if there is a reader for it. Raises
    OSError, ValueError or TurnwireError, as the stage would at its start."""
    if name not in _VALUE_READERS and name not in _CONFIG_READERS:
        return
    if value == "":
        raise ValueError('"" is empty')
    if name in _VALUE_READERS:
        _VALUE_READERS[name](value)
    else:
        _CONFIG_READERS[name](config)


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


_VALUE_READERS: Mapping[str, ReadSetting] = {
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
"""Read what a setting's value names."""
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
"""Read what a setting names from the whole configuration."""
