"""Turns without a worker: what their steps and ends call for is noted."""

from types import SimpleNamespace
from typing import Any

from msgspec import Raw

from services.worker.engine import EngineDelta
from services.worker.output.decoding import Decoding
from services.worker.output.token_stream import TokenStream


class FakeDecodings:
    """Takes the place of `Decodings`."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.prefills: list[int | None] = []
        self.ends: list[str] = []

    def open(self, ids: list[int] | None = None, turn: str = "t") -> Decoding:
        """A turn with `ids` of an earlier attempt."""
        stream = TokenStream(
            turn=turn, attempt=1, frontend="f", context=Raw(b"{}"), ids=list(ids or [])
        )
        turns: Any = self
        observer: Any = SimpleNamespace(prefilled=self._prefilled)
        prompt: Any = None
        return Decoding(turns, stream, prompt, observer)

    def wake(self, decoding: Decoding) -> None:
        """Of a turn with tokens that no other one waits with, or with its first."""
        self.steps.append(decoding.stream.turn)

    def end(self, decoding: Decoding) -> None:
        """Of a turn that has ended."""
        self.ends.append(decoding.stream.turn)

    def _prefilled(self, delta: EngineDelta) -> None:
        self.prefills.append(delta.cached)
