"""Sets the environment that vLLM's processes inherit, and ends them with their parent.

Without `die_with_parent`, vLLM's engine process outlives a killed worker and keeps the device's
memory. vLLM calls its plugins of the group `vllm.general_plugins` at the start of each of its
processes; `die_with_parent` is one (`pyproject.toml`).
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import MutableMapping
from multiprocessing.process import BaseProcess

PLUGIN = "turnwire"
"""The plugin's name in `VLLM_PLUGINS`."""


def set_environment(environ: MutableMapping[str, str]) -> None:
    """Sets environment variables, from which vLLM reads its settings when it is imported."""
    environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # it would report its use to its makers
    # The fork of a process with threads may inherit a lock that is never released.
    environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    plugins = environ.get("VLLM_PLUGINS")
    if plugins and PLUGIN not in plugins.split(","):
        environ["VLLM_PLUGINS"] = f"{plugins},{PLUGIN}"


def die_with_parent() -> None:
    """Kills this process when its parent has ended. Does nothing in a process that multiprocessing
    did not start."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
