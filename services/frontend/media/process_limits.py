"""Limits processes that read data of clients with a large library (Pillow, PDFium)."""

import os
import sys

_NICENESS = 10
"""Token streams have priority."""


def limit_process(memory_bytes: int) -> None:
    """Limits this process's memory, and lowers its priority."""
    if sys.platform == "win32":
        return
    import resource

    os.nice(_NICENESS)
    _set_limit(resource.RLIMIT_AS, memory_bytes)
    _set_limit(resource.RLIMIT_CORE, 0)


def limit_cpu(seconds: int) -> None:
    """Lets the system end this process after `seconds` more of computing."""
    if sys.platform == "win32":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_limit(resource.RLIMIT_CPU, round(used.ru_utime + used.ru_stime) + seconds)


def _set_limit(kind: int, limit: int) -> None:
    import resource

    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (limit, hard))
    except (ValueError, OSError):  # a lower limit is set already, or the system lacks this one
        pass
