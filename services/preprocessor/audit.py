"""Now and then a prompt is made in the ordinary way, too, off the path, and compared with what was sent.

Proofs at load try many cases, users have others. A difference is not looked into here: what made it is turned off for
good, and the log and a metric say so.
"""

import threading
from collections.abc import Callable
from typing import TypeAlias

from services.preprocessor.encoding import Encoder, Stable
from services.preprocessor.history import History

EVERY = 500
"""Of so many prompts one is compared; a large one costs a tenth of a second of a thread, so 0.2 ms a prompt."""
Check: TypeAlias = Callable[[], str | None]
"""Compares, and says what was found and turned off; None: nothing. Raises nothing that the template does not raise."""


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
        """Prompts that were not as the ordinary way makes them."""

    def offer(self, text: str, stable: Stable | None, whole: Callable[[], str]) -> None:
        """A prompt that was made; `whole` makes its text in the ordinary way. Most are not looked at."""
        with self._lock:
            self._offered += 1
            if self._offered % self._every == 0 and self._next is None:
                self._next = lambda: self._compare(text, stable, whole)

    def take(self) -> Check | None:
        """The comparison that is due, once; to be called in a thread that nobody waits for."""
        if self._next is None:
            return None
        with self._lock:
            check, self._next = self._next, None
        return check

    def _compare(self, text: str, stable: Stable | None, whole: Callable[[], str]) -> str | None:
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
