"""Reads calls inside code, which may turn out to be text."""

from schemas.events import BlockEvent, BlockStart, Delta
from services.families.grammar.scanner import BlockWriter, Reader, Scanner
from services.families.grammar.turn_state import IS_CALL, CallReading, TurnState, not_a_call


def read_in_code(
    turn: TurnState, reading: Reader[bool], start: int, header: str = ""
) -> Reader[CallReading]:
    """Runs `reading`, which reads calls that stand in code, from `start` on, and returns whether
    they are real.

    Their blocks wait for that. If they are not, `header` and all passed text go into the open
    block.
    """
    trial = Trial(turn)
    real, passed = yield from _read_recorded(turn.scanner, reading, start)
    if real:
        trial.accept()
        return IS_CALL
    trial.reject(header + passed)
    return not_a_call("")


class Trial:
    """Calls that may turn out to be text: from here on, the blocks of the turn wait until `accept`
    or `reject`."""

    def __init__(self, turn: TurnState) -> None:
        self._turn = turn
        self._before = turn.prose_state()
        self._blocks = turn.blocks
        turn.blocks = BlockWriter()

    def accept(self) -> None:
        """Ends the open block, and adds those of the calls."""
        events = self._end()
        self._turn.end_prose()
        for event in events:
            if isinstance(event, BlockStart):
                self._blocks.open(event.kind, event.name, event.call_id)
            elif isinstance(event, Delta):
                self._blocks.write(event.text)
            else:
                self._blocks.close(event.complete)

    def reject(self, text: str) -> None:
        """Drops the blocks of the calls, and adds their `text` to the open block."""
        self._end()
        self._turn.go_back(self._before, text)

    def _end(self) -> list[BlockEvent]:
        calls = self._turn.blocks
        calls.settle(stopped=self._turn.scanner.stopped)
        self._turn.blocks = self._blocks
        return calls.drain()


def _read_recorded(scanner: Scanner, reading: Reader[bool], start: int) -> Reader[tuple[bool, str]]:
    """Runs a reader, which may record text itself; returns its result, and the text that it passed
    from `start` on. No text bypasses it."""
    passed: list[str] = []
    while True:
        try:
            next(reading)
        except StopIteration as end:
            passed.append(scanner.text[start : scanner.position])
            return bool(end.value), "".join(passed)
        passed.append(scanner.text[start : scanner.position])
        start = 0
        yield None
