"""`turnwire doctor`: checks this machine, the bus and the model, and prints a report that can be pasted into an issue.

Nothing secret is in it: settings are shown as `turnwire config` shows them, files by name only.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Sequence

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from services.cli import doctor_bus, doctor_machine
from services.cli.finding import Finding, Status
from services.runtime.config import (
    STAGES,
    BusConfig,
    FrontendConfig,
    ParserConfig,
    PreprocessorConfig,
    UpConfig,
    WorkerConfig,
)
from services.runtime.config_flags import add_config_flag, add_flags, parse_arguments
from services.runtime.config_sources import CONFIG_VARIABLE, ConfigError, Given, load

_STYLES: dict[Status, str] = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "bold red"}
_NO_MODEL = "-"


def main(argv: Sequence[str]) -> int:
    """Status 1 where something is wrong, 0 otherwise: notes and warnings are no failure."""
    parser = argparse.ArgumentParser(
        prog="turnwire doctor", usage="turnwire doctor [flags of a stage]", allow_abbrev=False, description=__doc__
    )
    parser.add_argument("--listen-s", type=float, default=1.5, help="how long to listen for heartbeats [default: 1.5]")
    add_config_flag(parser)
    add_flags(parser, BusConfig, FrontendConfig, WorkerConfig, PreprocessorConfig, ParserConfig)
    arguments = parse_arguments(parser, argv)
    file = arguments.config or os.environ.get(CONFIG_VARIABLE) or None
    console = Console(highlight=False, soft_wrap=True)
    worst = 0
    for finding in findings(arguments.given, file, arguments.listen_s):
        worst = max(worst, finding.status == "fail")
        console.print(Text(f"{finding.status:<5}", style=_STYLES[finding.status]).append(str(finding), style="default"))
    return worst


def findings(given: dict[str, Given], file: str | None, listen_s: float) -> Iterable[Finding]:
    """All checks, one after the other, as they are done."""
    yield from doctor_machine.check()
    settings = list(_settings(given, file))
    yield from settings
    if any(finding.status == "fail" for finding in settings):
        return
    frontend = load(FrontendConfig, given, os.environ, file)
    worker = load(WorkerConfig, given, os.environ, file, defaults={"model": _NO_MODEL}).config
    preprocessor = load(PreprocessorConfig, given, os.environ, file, defaults={"model": _NO_MODEL}).config
    explicit = frontend.origins["nats_url"] != "default"
    yield from asyncio.run(doctor_bus.check(frontend.config.bus, explicit, listen_s))
    yield doctor_machine.check_port(frontend.config)
    if worker.model == _NO_MODEL:
        yield Finding("note", "model", "none configured: turnwire up serves the demo model")
    else:
        # Read when it is imported; what torch is wanted for is told by the findings.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        from services.cli import doctor_model

        yield from doctor_model.check(worker, preprocessor)


def _settings(given: dict[str, Given], file: str | None) -> Iterable[Finding]:
    problems: dict[str, None] = {}
    changed: dict[str, None] = {}
    tables: list[type[Struct]] = [*STAGES.values(), UpConfig]
    for config in tables:
        try:
            loaded = load(config, given, os.environ, file, defaults={"model": _NO_MODEL})
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
            continue
        changed |= {
            f"{name} = {value} ({origin})": None for name, value, origin in loaded.rows() if origin != "default"
        }
    for problem in problems:
        yield Finding("fail", "settings", problem)
    if not problems:
        yield Finding("ok", "settings", "; ".join(changed) or "all defaults")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
