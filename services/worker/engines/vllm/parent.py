"""Ends vLLM's processes when their parent has ended.

Without this, vLLM's engine process outlives a killed worker and keeps the device's memory. vLLM
calls its plugins of the group `vllm.general_plugins` at the start of each of its processes;
`die_with_parent` is one (`pyproject.toml`).
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess

PLUGIN = "turnwire"
"""The plugin's name in `VLLM_PLUGINS`."""


def die_with_parent() -> None:
    """Kills this process when its parent has ended. Does nothing in a process that multiprocessing
    did not start."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
