"""Records what happens to the turns of a parser: spans, metrics and log lines."""

from time import perf_counter, time_ns

from prometheus_client import Counter

from schemas.events import Failed, Finish, Interrupted
from services.families.family import title
from services.parser.turn_parse import TurnParse
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

    def opened(self, parse: TurnParse, at_ns: int) -> None:
        """The first tokens of a turn have arrived. Later calls for the turn do nothing. `at_ns`:
        Unix time."""
        parse.times.opened_ns = parse.times.opened_ns or at_ns

    def finished(self, parse: TurnParse) -> None:
        """The turn's last tokens were parsed."""
        parse.times.ended_at = perf_counter()  # the loop's time does not advance within a tick
        for cause in parse.blocks.broken_calls():
            self._broken_calls.labels(title(parse.stream.context.family), cause).inc()
        self.ended(parse)

    def end_sent(self, parse: TurnParse) -> None:
        """A frame has the turn's last events."""
        times = parse.times
        if times.ended_at:
            self._parse_s.observe(perf_counter() - times.ended_at)
            times.ended_at = 0.0  # replays are not measured

    def failed(self, turn: str, error: Exception) -> None:
        """An entry could not be parsed, or the events of a turn not be read."""
        self._process.log.error("parser.turn_failed", turn=turn, exc_info=error)

    def worker_lost(self, worker: str, turns: int) -> None:
        """A worker was lost, with turns that had not ended."""
        self._process.log.warning("parser.worker_lost", worker=worker, turns=turns)

    def ended(self, parse: TurnParse) -> None:
        """The turn has its last event, or was cancelled: records its span."""
        stream = parse.stream
        scope = self._process.scope(stream.context.trace)
        last = stream.log.terminal
        output = last.usage.output if isinstance(last, Finish) else len(stream.ids)
        broken = last.broken_call if isinstance(last, Interrupted) else None
        details: dict[str, str | int | bool | None] = {
            "turnwire.attempt": stream.attempt,
            "turnwire.family": title(stream.context.family),
            "turnwire.blocks": len(stream.log.blocks),
            "turnwire.interrupted": isinstance(last, Interrupted) or None,
            "turnwire.broken_call": broken.cause if broken is not None else None,
            "turnwire.cancelled": last is None or None,
            "gen_ai.usage.output_tokens": output,
        }
        now = time_ns()
        error = str(last.error.kind) if isinstance(last, Failed) else None
        scope.record("parse", parse.times.opened_ns or now, now, details, error=error)
