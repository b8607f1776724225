"""Records what happens to the turns of a parser: spans, metrics and log lines."""

from collections.abc import Sequence
from time import perf_counter, time_ns

from prometheus_client import Counter

from schemas.events import BrokenCallCause, Failed, Finish, Interrupted
from schemas.frames import TokenEntry
from services.families.family import title
from services.parser.turn_stream import TurnStream
from services.runtime.observability.metrics import step_histogram
from services.runtime.process import Process


class ParserObserver:
    """Has a method for each thing that happens to a turn."""

    def __init__(self, process: Process) -> None:
        self._process = process
        text = "From the arrival of a turn's last tokens to the frame with its last events."
        self._parse_s = step_histogram("parse", text, process.metrics)
        self._broken_calls = Counter(
            "turnwire_broken_calls",
            "Calls that could not be read, or that their tool cannot run.",
            ("family", "cause"),
            registry=process.metrics,
        )

    def opened(self, stream: TurnStream, at_ns: int) -> None:
        """The first tokens of a turn have arrived. Later calls for the turn do nothing. `at_ns`:
        Unix time."""
        stream.opened_ns = stream.opened_ns or at_ns

    def finished(self, stream: TurnStream, broken_calls: Sequence[BrokenCallCause]) -> None:
        """The turn's last tokens were parsed. `broken_calls`: why each of them is broken."""
        stream.ended_at = perf_counter()  # the loop's time does not advance within a tick
        for cause in broken_calls:
            self._broken_calls.labels(title(stream.context.family), cause).inc()
        self.ended(stream)

    def end_sent(self, stream: TurnStream) -> None:
        """A frame has the turn's last events."""
        if stream.ended_at:
            self._parse_s.observe(perf_counter() - stream.ended_at)
            stream.ended_at = 0.0  # replays are not measured

    def failed(self, entry: TokenEntry, error: Exception) -> None:
        """An entry could not be parsed."""
        self._process.log.error("parser.turn_failed", turn=entry.turn, exc_info=error)

    def worker_lost(self, worker: str, turns: int) -> None:
        """A worker was lost, with turns that had not ended."""
        self._process.log.warning("parser.worker_lost", worker=worker, turns=turns)

    def ended(self, stream: TurnStream) -> None:
        """The turn has its last event, or was cancelled: records its span."""
        scope = self._process.scope(stream.context.trace)
        if scope is None:
            return
        last = stream.log.terminal
        output = last.usage.output if isinstance(last, Finish) else len(stream.ids)
        broken = last.broken_call if isinstance(last, Interrupted) else None
        details: dict[str, str | int | bool | None] = {
            "turnwire.attempt": stream.attempt,
            "turnwire.family": title(stream.context.family),
            "turnwire.blocks": stream.log.blocks,
            "turnwire.interrupted": isinstance(last, Interrupted) or None,
            "turnwire.broken_call": broken.cause if broken is not None else None,
            "turnwire.cancelled": last is None or None,
            "gen_ai.usage.output_tokens": output,
        }
        now = time_ns()
        error = str(last.error.kind) if isinstance(last, Failed) else None
        scope.record("parse", stream.opened_ns or now, now, details, error=error)
