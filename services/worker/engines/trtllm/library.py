"""The names of TensorRT-LLM that the engine uses, and what the library's errors mean."""

import importlib
import re
from typing import Any

from services.worker.engine_checks import check_room
from services.worker.engines.trtllm.releases import Release, installed_release

REQUEST_ERRORS = (
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""Errors that the library raises in this process for one request, for example for an unknown finish
reason."""
_WORKER_WINDOW = re.compile(r"max_seq_len`? \((\d+)\)")
"""The window in the worker's refusal of a prompt that does not fit."""


class TrtllmLibrary:
    """The imported packages. To be made on the main thread, because the import binds MPI to its
    thread; it takes seconds."""

    def __init__(self) -> None:
        self.tensorrt_llm: Any = importlib.import_module("tensorrt_llm")
        self.llmapi: Any = importlib.import_module("tensorrt_llm.llmapi")
        self.request_error: type[Exception] = self.llmapi.RequestError
        executor = importlib.import_module("tensorrt_llm.executor")
        self._dead_error: type[Exception] | None = getattr(executor, "EngineDeadError", None)
        self.conversation_params: Any = None
        """The library's class, where ranks have caches of their own: it sends a session's turns to
        one rank."""
        self.release: Release

    def read_release(self, *, has_ranks: bool) -> None:
        """Finds out what the installed release accepts. `has_ranks`: ranks have caches of their
        own. Raises ValueError if it is too old."""
        self.release = installed_release(self.tensorrt_llm, self.llmapi)
        if has_ranks and "conversation_params" in self.release.generate:
            module = importlib.import_module("tensorrt_llm.conversation_params")
            self.conversation_params = module.ConversationParams

    def is_of_one_request(self, error: Exception) -> bool:
        """Returns whether an error, which is not a death, is that of one request only."""
        return isinstance(error, (self.request_error, *REQUEST_ERRORS))

    def is_death(self, error: Exception, llm: Any) -> bool:
        """Returns whether the library has given up the engine: it shuts down its executor if a
        worker or thread fails."""
        if self._dead_error is not None and isinstance(error, self._dead_error):
            return True
        if "LLM is shutting down" in str(error):
            return True
        executor = getattr(llm, "_executor", None)
        is_shutdown = getattr(executor, "is_shutdown", None)
        return is_shutdown is not None and bool(is_shutdown())


class WorkerWindow:
    """The context window of the library's worker, as far as this process has found it out. It is
    smaller than this process's if the cache cannot hold more."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def reduce(self, tokens: int) -> None:
        """Notes that the window has no more than this number of tokens."""
        self.tokens = min(self.tokens, tokens)

    def read(self, error: Exception) -> bool:
        """Notes the window that a refusal names. Returns whether it names one."""
        match = _WORKER_WINDOW.search(str(error))
        if match is None:
            return False
        self.reduce(int(match[1]))
        return True

    def check(self, prompt_tokens: int, max_tokens: int) -> None:
        """Raises ContextOverflow for a turn that does not fit."""
        check_room(prompt_tokens, max_tokens, self.tokens)
