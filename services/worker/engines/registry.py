"""Finds engines by name: entry points of the group `turnwire.engines`. An engine is imported when
it is opened."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from schemas.errors import Invalid
from services.runtime.config.loader import ConfigError
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import Engine

MakeEngine: TypeAlias = Callable[[WorkerConfig], object]
GROUP = "turnwire.engines"
BUILT_IN = {
    "llama-server": "services.worker.engines.remote.llama.dialect:LlamaServer",
    "script": "turnwire_tools.script.engine:ScriptEngine",
    "sglang-server": "services.worker.engines.remote.sglang.dialect:SglangServer",
    "transformers": "services.worker.engines.transformers.engine:TransformersEngine",
    "trtllm": "services.worker.engines.trtllm.engine:TrtllmEngine",
    "vllm": "services.worker.engines.vllm.engine:VllmEngine",
    "vllm-server": "services.worker.engines.remote.vllm.dialect:VllmServer",
}
"""The engines that no package can replace. A clone that was never installed has no entry points for
them."""
_ON_SERVERS = "services.worker.engines.remote."
"""The package of engines that decode on an inference server."""
SEPARATE = {"llamacpp": "pip install -e examples/engine_llamacpp"}
"""Engines of this project that are packages of their own, and how a clone installs them."""


def installed_engines() -> dict[str, EntryPoint]:
    """Returns every engine that can be chosen, by name."""
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    return installed | {name: EntryPoint(name, path, GROUP) for name, path in BUILT_IN.items()}


def decodes_on_server(name: str) -> bool:
    """Whether an engine decodes on an inference server, which `--engine-url` names. One of another
    package is imported: it has a method `examine`, as `RemoteEngine`."""
    if name in BUILT_IN:
        return BUILT_IN[name].startswith(_ON_SERVERS)
    try:
        return hasattr(load_engine(name), "examine")
    except (ConfigError, Invalid):
        return False


def missing_engine(name: str) -> str | None:
    """Returns why there is no engine of this name, with what to do; None if there is one."""
    engines = installed_engines()
    if name in engines:
        return None
    if name in SEPARATE:
        return (
            f"the engine {name!r} is a package that is not installed; in a clone: {SEPARATE[name]}"
        )
    return f"there is no engine {name!r}; installed are: {', '.join(sorted(engines))}"


def load_engine(name: str) -> MakeEngine:
    """Imports the class or function of the entry point called `name`.

    Raises ConfigError if there is no such engine, Invalid if it cannot be imported.
    """
    problem = missing_engine(name)
    if problem is not None:
        raise ConfigError([f"engine: {problem}"])
    try:
        make: MakeEngine = installed_engines()[name].load()
    except (ImportError, AttributeError) as error:
        raise Invalid(f"the {name} engine cannot be imported: {error}", param="engine") from error
    return make


def open_engine(name: str, config: WorkerConfig) -> Engine:
    """Makes the engine called `name` without starting it. Raises as `load_engine`, and Invalid if
    its class does not derive from `Engine`."""
    engine = load_engine(name)(config)
    if not isinstance(engine, Engine):
        raise Invalid(
            f"the {name} engine cannot be used: its class must derive from "
            "services.worker.engine.Engine",
            param="engine",
        )
    return engine
