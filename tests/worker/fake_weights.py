"""What the fakes of both servers know of weights: sources, and the labels of a turn's tokens."""

from typing import Any

from tests.worker.fake_vllm import AsyncLLM


class FakeWeights:
    """The weights of a fake server, whose engine decodes other tokens with each."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.sources: dict[str, int] = {}
        """The number of the weights in each directory that the server can read."""
        self.paused = False
        self.half_loads = False
        """An update that fails leaves other weights than before."""
        self._engine = engine

    def load(self, source: str) -> bool:
        """Whether the server has loaded them."""
        if source not in self.sources:
            if self.half_loads:
                self._engine.weights = 199
            return False
        self._engine.weights = self.sources[source]
        return True


class Labels:
    """The label of each token of one turn."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self._total = 0

    def add(self, out: Any) -> None:
        """Notes an output of the engine."""
        end = self._total + len(out.token_ids)
        if self.spans and self.spans[-1]["version"] == out.label:
            self.spans[-1]["end"] = end
        elif out.token_ids:
            self.spans.append({"version": out.label, "start": self._total, "end": end})
        self._total = end
