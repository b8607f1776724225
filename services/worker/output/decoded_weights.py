"""Records which weights have decoded the tokens of a stream. Pure."""

from collections.abc import Iterable

from schemas.events import WeightsSpan, corrected


class DecodedWeights:
    """The versions of the weights that have decoded one stream's tokens."""

    __slots__ = ("last_at", "spans")

    def __init__(self, spans: Iterable[WeightsSpan] = ()) -> None:
        self._set([*spans])

    def _set(self, spans: list[WeightsSpan]) -> None:
        self.spans = spans
        self.last_at = spans[-1].at if spans else -1
        """The first token of the last version; -1: no version is known."""

    def begin(self, at: int, version: int) -> None:
        """Notes the version that decodes the tokens from `at` on, which are not added yet."""
        spans = self.spans
        while spans and spans[-1].at >= at:
            spans.pop()
        if not spans or spans[-1].version != version:
            spans.append(WeightsSpan(at, version))
        self._set(spans)

    def correct(self, end: int, spans: Iterable[WeightsSpan]) -> list[WeightsSpan]:
        """Replaces the spans from the first one of the engine's last request on. Returns that
        request's spans with places in the stream.

        `end`: the number of the stream's tokens; `spans`: as in `EngineDelta`.
        """
        correct = [WeightsSpan(end + span.at, span.version) for span in spans]
        self._set(corrected(self.spans, correct))
        return correct

    def within(self, start: int, end: int) -> list[WeightsSpan]:
        """Returns the spans that begin in a part of the stream."""
        return [span for span in self.spans if start <= span.at < end]
