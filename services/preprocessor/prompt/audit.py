"""Compares one prompt in 500 with the same prompt made without shortcuts, outside the request path.

The trials at load cover many cases, but not all. A difference turns off the shortcut that caused it until the next
start, with a log event and a metric.
"""

import threading
from collections.abc import Callable
from typing import TypeAlias

from services.preprocessor.prompt.history import History
from services.tokenization.encoder import Encoder, StablePrefix

EVERY = 500
"""One prompt in so many is compared. A large one costs 0.1 s in a thread, which makes 0.2 ms a prompt."""
Check: TypeAlias = Callable[[], str | None]
"""Compares, and returns the difference that turned off a shortcut, or None. Raises only what the template raises."""


class Audit:
    """Chooses prompts and compares them. Thread-safe."""

    def __init__(self, history: History, encoder: Encoder, *, every: int = EVERY) -> None:
        self._history = history
        self._encoder = encoder
        self._every = every
        self._offered = 0
        self._next: Check | None = None
        self._lock = threading.Lock()
        self.checks = 0
        """Prompts compared."""
        self.differences = 0
        """Prompts that differed."""

    def offer(self, text: str, stable: StablePrefix | None, whole: Callable[[], str]) -> None:
        """Takes a prompt, mostly to ignore it. `whole` renders its text without shortcuts."""
        with self._lock:
            self._offered += 1
            if self._offered % self._every == 0 and self._next is None:
                self._next = lambda: self._compare(text, stable, whole)

    def take(self) -> Check | None:
        """The next comparison, once; to be run in a thread of its own."""
        if self._next is None:
            return None
        with self._lock:
            check, self._next = self._next, None
        return check

    def _compare(self, text: str, stable: StablePrefix | None, whole: Callable[[], str]) -> str | None:
        found = None
        if whole() != text and self._history.off is None:
            found = "a prompt rendered in parts was not the template's"
            self._history.turn_off(found)
        elif self._encoder.encode(text, stable) != self._encoder.reference(text):
            found = f"ids by {self._encoder.name} were not the tokenizer's"
            self._encoder.distrust(found)
        with self._lock:
            self.checks += 1
            self.differences += found is not None
        return found
