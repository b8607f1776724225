"""`turnwire doctor`: checks this machine, the bus and the model, and prints a report for pasting
into an issue."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import Struct

from services.cli.doctor.bus import check_bus
from services.cli.doctor.machine import check_engine, check_machine, check_port
from services.cli.doctor.peers import check_server
from services.cli.doctor.report import Finding, print_report
from services.cli.instances import Instance, bus_defaults, instance_at, running_instances
from services.cli.registry import COMMON_SETTINGS, Command
from services.cli.signals import run
from services.runtime.config.base import Seconds
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import ConfigError, LoadedConfig, Sources
from services.runtime.config.names import KEY_VARIABLE
from services.runtime.config.options import as_text
from services.runtime.config.service import BusConfig
from services.runtime.config.stages import ParserConfig, PreprocessorConfig, WorkerConfig
from services.runtime.config.tables import STAGES, UpConfig


def examine(
    sources: Sources,
    /,
    *,
    listen_s: Seconds = 1.5,
    url: str | None = None,
    key: Annotated[str | None, Parameter(env_var=KEY_VARIABLE)] = None,
) -> int:
    """Checks this machine, the bus and the model, and prints a report that can be pasted into an
    issue.

    It shows settings as `turnwire config` does and files by name only: nothing in it is secret.
    Exits with status 1 if a check failed; notes and warnings do not count.

    Args:
        listen_s: How long to listen for heartbeats.
        url: Address of a server that is checked, too.
        key: API key for the server.
    """
    return print_report(findings(sources, listen_s, url, key))


COMMAND = Command(
    examine,
    (BusConfig, FrontendConfig, WorkerConfig, PreprocessorConfig, ParserConfig),
    essential=COMMON_SETTINGS,
)


class _Target(Struct, frozen=True):
    """The server and the bus that are examined besides this machine."""

    instance: Instance | None
    """The running `turnwire up`; None: there is none."""
    url: str | None
    """The server that the user named."""
    bus: BusConfig
    is_bus_named: bool
    """The bus is that of the instance, or the user named it."""

    @property
    def own(self) -> Instance | None:
        """The instance, if it is on the examined bus."""
        if self.instance is None or self.instance.nats_url != self.bus.nats_url:
            return None
        return self.instance

    @property
    def urls(self) -> Sequence[str]:
        """The frontends that have to see all processes on the bus."""
        if self.url is not None:
            return [self.url]
        return [] if self.own is None else self.own.urls


def findings(
    sources: Sources, listen_s: float, url: str | None = None, key: str | None = None
) -> Iterable[Finding]:
    """Yields the findings of all checks, in order."""
    yield from check_machine()
    # Without a model, all other settings are checked.
    try:
        defaults = {"model": None, **bus_defaults(sources.env, url)}
        loaded = sources.load_all({**STAGES, "up": UpConfig}, defaults)
    except ConfigError as error:
        yield from (Finding("fail", "settings", problem) for problem in error.problems)
        return
    yield _settings(loaded.values())

    frontend: FrontendConfig = loaded["frontend"].config
    instance = instance_at(url, sources.env)
    is_bus_named = instance is not None or loaded["frontend"].origins["nats_url"] != "default"
    target = _Target(instance, url, frontend.bus, is_bus_named)
    yield from _running(target, sources.env)
    if url is not None:
        yield check_server(url, key)
    yield from _bus(target, listen_s)
    if instance is None:
        yield check_port(frontend)
    yield from _engine_and_model(target, loaded["worker"], loaded["preprocessor"].config)


def _running(target: _Target, env: Mapping[str, str]) -> Iterable[Finding]:
    """Names the instances of `turnwire up` on this machine."""
    for running in running_instances(env):
        names = ", ".join(running.models or [running.model])
        text = f"turnwire up serves {names} at {' '.join(running.urls)}"
        if running != target.instance:
            text += f"; not examined, unless with --url {running.url}"
        yield Finding("ok", "running", text)


def _bus(target: _Target, listen_s: float) -> list[Finding]:
    makes_buckets = target.own is not None and target.own.own_bus
    return run(
        check_bus(
            target.bus, target.is_bus_named, listen_s, target.urls, makes_buckets=makes_buckets
        )
    )


def _engine_and_model(
    target: _Target, loaded: LoadedConfig[Any], preprocessor: PreprocessorConfig
) -> Iterable[Finding]:
    """Checks the configured engine and model. `loaded`: the settings of the worker."""
    worker: WorkerConfig = loaded.config
    has_default_engine = loaded.origins["engine"] == "default"
    if target.instance is not None and not worker.model and has_default_engine:
        text = "not examined: they are in none of these settings; pass the flags of turnwire up"
        yield Finding("note", "model, engine", text)
        return
    # transformers reads this when it is imported; the findings report a missing torch themselves.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    served = yield from check_engine(worker)
    if worker.model:
        from services.cli.doctor.model import check_model

        yield from check_model(worker, preprocessor, served)
    elif worker.engine != "script":
        yield Finding("warn", "model", f"none configured: --engine {worker.engine} needs a --model")
    else:
        yield Finding("note", "model", "none configured: turnwire up serves the demo model")


def _settings(loaded: Iterable[LoadedConfig[Any]]) -> Finding:
    """The settings that are not defaults, those that several stages share once."""
    changed: dict[str, None] = {}
    for settings in loaded:
        for name, value, origin in settings.rows():
            if origin != "default":
                changed[f"{name} = {as_text(value)} ({origin})"] = None
    return Finding("ok", "settings", "; ".join(changed) or "all defaults")
