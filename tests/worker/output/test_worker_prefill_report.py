"""Reports of prompts that are computed."""

from schemas.events import FinishReason
from schemas.requests import PrefillNotice
from services.worker.engine import EngineDelta
from tests.kit.waiting import eventually
from tests.kit.worker import NOTICES, HeldTrial


async def test_notice_follows_the_first_token_of_a_prompt_that_was_computed(
    trial: HeldTrial,
) -> None:
    reply = await trial.generate("t", None, notice=NOTICES, notice_tokens=3)
    assert reply.expected_cached == 0
    assert (await trial.generate("u", None)).expected_cached == 0, "the other turn only computes it"
    assert not trial.notices
    for token in (7, 8):
        trial.engine.open_turns["t.1"].put(EngineDelta([token], cached=0))
    await eventually(lambda: bool(trial.notices))
    assert (await trial.generate("v", None, notice=NOTICES, notice_tokens=2)).expected_cached == 2
    trial.engine.open_turns["v.1"].put(
        EngineDelta([7], finish=FinishReason.STOP, stop_id=2, cached=2)
    )
    await trial.end_of("v")
    for process in (trial.worker, trial.shard):
        await process.bus.flush()
    assert trial.notices == [PrefillNotice("t", True)], "one token of v was new"
