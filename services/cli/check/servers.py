"""Checks the addresses of inference servers, and the servers themselves (`--engine-url`)."""

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from schemas.errors import TurnwireError
from services.runtime.config.loader import ConfigError, LoadedConfig
from services.runtime.config.stages import WorkerConfig

_PORTS = {"http": 80, "https": 443}


def read_url(url: str) -> None:
    """Raises ValueError for text that is not an http or https URL."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return
    except ValueError:
        pass
    raise ValueError("not an http or https URL, as in http://HOST:PORT")


def read_engine_url(config: Any) -> None:
    """Raises ValueError if an address of an inference server cannot work, or is there twice."""
    from services.worker.engines.registry import decodes_on_server, missing_engine

    if missing_engine(config.engine) is None and not decodes_on_server(config.engine):
        raise ValueError(f"the engine {config.engine} decodes in its own process")
    servers = set()
    for url in config.engine_urls:
        server = _read_server_url(url)
        if server in servers:
            raise ValueError(f"{url} is there twice")
        servers.add(server)


def _read_server_url(url: str) -> tuple[str, str | None, int, str]:
    """Scheme, host, port and path."""
    read_url(url)
    parts = urlsplit(url)
    if "@" in parts.netloc:  # errors and the process list would show it
        raise ValueError("it has credentials; --engine-api-key-file passes a key")
    if "?" in url or "#" in url:
        raise ValueError("the address of an inference server has no query and no fragment")
    port = parts.port or _PORTS[parts.scheme]
    return parts.scheme, parts.hostname, port, parts.path.rstrip("/")


def examine_servers(worker: LoadedConfig[Any]) -> int | None:
    """Checks each inference server of the worker. Returns the smallest of their context windows in
    tokens; None: no server reports one.

    Raises ConfigError if one does not answer, has no token interface or another model.

    No part of `check_settings`, which every process runs: a worker waits for its server.
    """
    from services.worker.engines.registry import load_engine

    config: WorkerConfig = worker.config
    windows = []
    for url in config.engine_urls:
        engine: Any = load_engine(config.engine)
        try:
            server = engine.examine(replace(config, engine_url=url))
        except TurnwireError as error:
            problem = f"Invalid value for {worker.origins['engine_url']}: {error}{path_hint(url)}"
            raise ConfigError([problem]) from error
        windows.append(server.max_model_len)
    return min(filter(None, windows), default=None)


def path_hint(url: str) -> str:
    """What may be wrong with the path of an inference server that cannot be used; "": nothing."""
    if urlsplit(url).path.rstrip("/").endswith("/v1"):
        return "; leave out the /v1 at its end"
    return ""
