"""`turnwire doctor`: checks this machine, the bus and the model, and prints a report for pasting
into an issue."""

import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from services.cli.doctor import bus as doctor_bus
from services.cli.doctor import machine as doctor_machine
from services.cli.doctor.report import Finding, print_report
from services.cli.doctor.server import check_server
from services.cli.instances import bus_defaults, instance_at, running_instances
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


def findings(
    sources: Sources, listen_s: float, url: str | None = None, key: str | None = None
) -> Iterable[Finding]:
    """Yields the findings of all checks, in order."""
    yield from doctor_machine.check()
    # Without a model, all other settings are checked.
    try:
        defaults = {"model": None, **bus_defaults(sources.env, url)}
        loaded = sources.load_all({**STAGES, "up": UpConfig}, defaults)
    except ConfigError as error:
        yield from (Finding("fail", "settings", problem) for problem in error.problems)
        return
    yield _settings(loaded.values())
    frontend: FrontendConfig = loaded["frontend"].config
    worker: WorkerConfig = loaded["worker"].config
    instance = instance_at(url, sources.env)
    for running in running_instances(sources.env):
        names = ", ".join(running.models or [running.model])
        text = f"turnwire up serves {names} at {' '.join(running.urls)}"
        if running != instance:
            text += f"; not examined, unless with --url {running.url}"
        yield Finding("ok", "running", text)
    if url is not None:
        yield check_server(url, key)
    explicit = instance is not None or loaded["frontend"].origins["nats_url"] != "default"
    is_its_bus = instance is not None and instance.nats_url == frontend.bus.nats_url
    urls: Sequence[str] = []
    if url is not None:
        urls = [url]
    elif instance is not None and is_its_bus:
        urls = instance.urls
    makes_buckets = instance is not None and is_its_bus and instance.own_bus
    yield from run(
        doctor_bus.check(frontend.bus, explicit, listen_s, urls, makes_buckets=makes_buckets)
    )
    if instance is None:
        yield doctor_machine.check_port(frontend)
    elif not worker.model and loaded["worker"].origins["engine"] == "default":
        text = "not examined: they are in none of these settings; pass the flags of turnwire up"
        yield Finding("note", "model, engine", text)
        return
    # transformers reads this when it is imported; the findings report a missing torch themselves.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    served = yield from doctor_machine.check_engine(worker)
    if not worker.model and worker.engine != "script":
        yield Finding("warn", "model", f"none configured: --engine {worker.engine} needs a --model")
    elif not worker.model:
        yield Finding("note", "model", "none configured: turnwire up serves the demo model")
    else:
        from services.cli.doctor import model as doctor_model

        yield from doctor_model.check(worker, loaded["preprocessor"].config, served)


def _settings(loaded: Iterable[LoadedConfig[Any]]) -> Finding:
    """Returns the settings that are not defaults, those that several stages share once."""
    changed: dict[str, None] = {}
    for settings in loaded:
        for name, value, origin in settings.rows():
            if origin != "default":
                changed[f"{name} = {as_text(value)} ({origin})"] = None
    return Finding("ok", "settings", "; ".join(changed) or "all defaults")
