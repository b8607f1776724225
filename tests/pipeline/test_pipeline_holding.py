"""Turns that wait while another turn computes the beginning of their prompts, over all four
services."""

import asyncio
from dataclasses import dataclass, field

import pytest

from schemas.events import Finish
from schemas.requests import GenerateRequest, decode_generate
from services.preprocessor.routing.leads import MAX_HOLD_S
from tests.kit.counting import Plan
from tests.kit.local import Local, Running, is_gone, other
from tests.kit.waiting import eventually

WORDS = 4


def group(name: str) -> str:
    """The beginning of the questions of a group: some 5,000 tokens."""
    return "".join(f"{name} {number} is a number of this group. " for number in range(400))


@dataclass
class Group:
    """Turns with one beginning. The first token of each waits for its own event."""

    local: Local
    name: str = "red"
    turns: list[Running] = field(default_factory=list)
    requests: list[GenerateRequest] = field(default_factory=list)
    """The requests of the turns of all groups."""

    def __post_init__(self) -> None:
        for preprocessor in self.local.of("preprocessor"):
            preprocessor.watching.append(self._watch)

    def _watch(self, subject: str, data: bytes) -> None:
        if ".gen." in subject:
            self.requests.append(decode_generate(data))

    def turn(self, hold_at: int | None = None, *, fails: bool = False) -> Running:
        """Opens a turn. `hold_at`: the tokens after which it waits for its event; `fails`: it has
        none."""
        plan = Plan(WORDS, hold_at=hold_at, go=asyncio.Event(), fail_at=0 if fails else None)
        turn = self.local.turn(plan, before=group(self.name))
        self.turns.append(turn)
        return turn

    def go(self, turn: Running) -> None:
        self.local.plans[turn.id].go.set()

    async def lead(self, *, fails: bool = False) -> Running:
        """Opens a turn; returns when its worker has it."""
        turn = self.turn(0, fails=fails)
        await self.local.begun(turn)
        return turn

    async def held(self, count: int) -> None:
        """Waits until this number of turns is held."""
        (preprocessor,) = self.local.of("preprocessor")
        await eventually(lambda: preprocessor.turns == count)
        await eventually(lambda: preprocessor.core.holding.leads.waiting.total() == count)

    def sent(self) -> list[str]:
        """The turns that workers have got."""
        return [request.turn for request in self.requests]

    async def finished(self) -> None:
        for turn in self.turns:
            assert isinstance(await turn.finished(), Finish)
        await self.local.idle()
        for preprocessor in self.local.of("preprocessor"):
            assert not preprocessor.core.holding.open_leads


@pytest.fixture
async def started(local: Local) -> Local:
    local.block_tokens = 16
    return await local.start()


async def test_siblings_wait_for_the_first_token_of_one_and_others_do_not(started: Local) -> None:
    siblings, blue = Group(started), Group(started, "blue")
    lead = await siblings.lead()
    others = [siblings.turn(0) for _ in range(3)]
    leaving = siblings.turn()
    await siblings.held(4)
    assert siblings.sent() == [lead.id]
    leaving.task.cancel()
    siblings.turns.remove(leaving)
    await siblings.held(3)
    for unrelated in (started.turn(Plan(WORDS)), blue.turn()):
        assert isinstance(await unrelated.finished(), Finish)
    siblings.requests.clear()
    siblings.go(lead)
    await eventually(lambda: len(siblings.requests) == 3)  # none of them has its first token
    for turn in others:
        siblings.go(turn)
    await siblings.finished()
    assert sorted(siblings.sent()) == sorted(turn.id for turn in others)
    assert [request.held_for for request in siblings.requests] == 3 * [lead.id]
    assert [request for request in siblings.requests if request.held_s <= 0] == []
    assert [request.held_for for request in blue.requests[:3]] == 3 * [""], "lead and unrelated"


@pytest.mark.parametrize("how", ["cancelled", "fails"])
async def test_next_sibling_leads_after_a_lead_without_a_token(started: Local, how: str) -> None:
    siblings = Group(started)
    lead = await siblings.lead(fails=how == "fails")
    others = [siblings.turn(0) for _ in range(3)]
    await siblings.held(3)
    if how == "cancelled":
        (await lead.task).cancel("hangup")
    else:
        siblings.go(lead)
    siblings.turns.remove(lead)
    await siblings.held(2)
    _, successor = siblings.sent()
    for turn in others:
        siblings.go(turn)
    await siblings.finished()
    assert [request.held_for for request in siblings.requests[1:]] == [
        lead.id,
        successor,
        successor,
    ]


async def test_siblings_of_a_worker_that_dies_go_to_another(started: Local) -> None:
    await started.add("worker")
    await started.completed()
    siblings = Group(started)
    lead = await siblings.lead()
    worker = started.worker_of(lead)
    successor = other(started, worker)
    others = [siblings.turn() for _ in range(3)]
    await siblings.held(3)
    await worker.kill()
    siblings.go(lead)
    await siblings.finished()
    (preprocessor,) = started.of("preprocessor")
    assert is_gone(worker, preprocessor)
    seen = {request.id.partition(".")[0] for request in successor.engine.seen}
    assert {turn.id for turn in others} <= seen


async def test_answers_that_continue_elsewhere_compute_their_beginning_once(started: Local) -> None:
    await started.add("worker")
    await started.completed()
    siblings = Group(started)
    turns = [siblings.turn(2) for _ in range(4)]
    await eventually(lambda: len(siblings.requests) == len(turns))
    worker = started.worker_of(turns[0])
    await eventually(lambda: [*worker.engine.running.values()] == [2] * len(turns))
    await worker.kill()
    await siblings.held(3)
    lead, *others = [request for request in siblings.requests if request.resume]
    assert (lead.held_for, others) == ("", [])
    for turn in turns:
        siblings.go(turn)
    await siblings.finished()
    assert [request.held_for for request in siblings.requests if request.resume] == [
        "",
        *3 * [lead.turn],
    ]


async def test_engine_that_shares_queued_prompts_gets_all_siblings_at_once(local: Local) -> None:
    local.block_tokens, local.shares_queued = 16, True
    await local.start(workers=2)
    siblings = Group(local)
    turns = [siblings.turn(0) for _ in range(4)]
    for turn in turns:
        await local.begun(turn)
    assert len({local.worker_of(turn).id for turn in turns}) == 1, "they stay together"
    (preprocessor,) = local.of("preprocessor")
    async with asyncio.timeout(MAX_HOLD_S / 2):  # while all of them wait for their first token
        await eventually(lambda: not preprocessor.core.holding.open_leads)
    for turn in turns:
        siblings.go(turn)
    await siblings.finished()
    assert [request.held_for for request in siblings.requests] == 4 * [""]
