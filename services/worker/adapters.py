"""Finds out which LoRA adapters of an engine requests may name."""

from services.worker.engine import AdapterSource, Engine, EngineInfo


class OfferedAdapters:
    """The adapters of one engine."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        self._source = engine if isinstance(engine, AdapterSource) else None
        shares_all = info.block_tokens is not None and "salt" not in info.features
        # An engine that shares KV blocks whatever their salts would share those of adapters.
        if shares_all:
            self._source = None

    def names(self) -> list[str]:
        """Returns their names. Adapters may come and go while the engine runs."""
        if self._source is None:
            return []
        return [name for name in self._source.adapters() if name and name.isprintable()]
