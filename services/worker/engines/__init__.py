"""The engines, by name. Nothing of an engine is imported before it is chosen."""

from schemas.errors import Invalid
from services.runtime.config import WorkerConfig
from services.worker.engine import Engine


def open_engine(name: str, config: WorkerConfig) -> Engine:
    """The engine called `name`, not yet started.

    Raises Invalid if there is no such engine, ImportError if what it needs is not installed.
    """
    if name == "script":
        from services.worker.engines.script import ScriptEngine

        return ScriptEngine(config)
    if name == "transformers":
        from services.worker.engines.transformers import TransformersEngine

        return TransformersEngine(config)
    if name == "trtllm":
        from services.worker.engines.trtllm import TrtllmEngine

        return TrtllmEngine(config)
    raise Invalid(f"there is no engine {name!r}; there are: script, transformers, trtllm", param="engine")
