"""Turns that an engine refuses to open as requested."""

from schemas.errors import ErrorKind, Invalid
from schemas.events import FinishReason
from services.worker.engine import EngineDelta, EngineRequest, Handle, Sink
from tests.kit.worker import HeldEngine, HeldTrial


class GrammarlessEngine(HeldEngine):
    """Says that it has grammars, and refuses each."""

    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        self.refuses = Invalid("the tools cannot be kept to") if request.grammar else None
        return super().open(request, sink)


async def test_turn_runs_without_a_refused_grammar_unless_something_is_promised(
    idle: HeldTrial,
) -> None:
    idle.engine = GrammarlessEngine()
    idle.engine.features |= {"grammar"}
    await idle.start(idle.engine, await idle.engine.start())
    promised = await idle.generate("promised", None, grammar="start: x")
    assert promised.error is not None
    assert promised.error.kind is ErrorKind.INVALID
    free = await idle.generate("free", None, grammar="start: x", optional_grammar=True)
    assert free.error is None
    idle.engine.open_turns["free.1"].put(EngineDelta([11], finish=FinishReason.STOP, stop_id=2))
    await idle.end_of("free")
    assert idle.ids("free") == [11]
