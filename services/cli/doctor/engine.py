"""Checks the engine: whether it is installed, and what it can and cannot do."""

from collections.abc import Iterable

from schemas.errors import TurnwireError
from services.cli.doctor.finding import Finding, first_line
from services.runtime.config import WorkerConfig
from services.runtime.config.loader import ConfigError
from services.worker.engine import Explainable
from services.worker.engines.registry import load_engine


def check(config: WorkerConfig) -> Iterable[Finding]:
    """The engine of the configuration. The engine is not started."""
    try:
        engine = load_engine(config.engine)
        if not isinstance(engine, Explainable):
            yield Finding("note", "engine", f"{config.engine}: does not explain what it can do")
            return
        support = engine.explain(config)
    except (ConfigError, TurnwireError, ImportError, OSError, ValueError) as error:
        yield Finding("fail", "engine", f"{config.engine}: {first_line(error)}")
        return
    yield Finding("ok", "engine", f"{config.engine} {support.version}: {', '.join(sorted(support.features))}")
    for feature, why in sorted(support.lacking.items()):
        yield Finding("note", f"no {feature}", why)
