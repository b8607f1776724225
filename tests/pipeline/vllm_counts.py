"""A plugin for vLLM that writes its own counts of prompt tokens to a file, a line for each step
with any: how many were computed, and how many came from the prefix cache."""

import os
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from tests.pipeline.forced_vllm import COUNTS


class Counts(StatLoggerBase):  # type: ignore[misc]
    """The plugin: an entry point of the group `vllm.stat_logger_plugins`."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        pass

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_args: Any, **_more: Any) -> None:
        if iteration_stats is not None and (counts := iteration_stats.prompt_token_stats).total:
            with open(os.environ[COUNTS], "a", encoding="ascii") as file:
                file.write(f"{counts.computed} {counts.cached_tokens}\n")

    def log_engine_initialized(self) -> None:
        pass
