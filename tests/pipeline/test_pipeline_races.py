"""Messages get lost or come late, processes die: a turn ends once, complete, and never mixes two
decodings."""

import asyncio
import math

import msgspec
import pytest
from msgspec.structs import replace

from schemas import subjects
from schemas.control import Stage
from schemas.errors import ErrorKind
from schemas.events import Failed, FinishReason
from schemas.frames import TokenEntry, TokenFrame
from services.frontend.gateway.attempts import BOTH_LOST
from tests.kit.counting import Plan, held
from tests.kit.local import Local, generate_requests, other
from tests.kit.waiting import eventually

decode_tokens = msgspec.json.Decoder(TokenFrame).decode


@pytest.mark.parametrize(
    ("of", "at", "how"),
    [
        (("worker", "parser"), 0, "killed"),
        (("worker",), 0, "unreported"),
        (("worker",), 20, "killed"),
        (("worker",), 20, "stopped"),
        (("parser",), 20, "stopped"),
    ],
)
async def test_turn_continues_elsewhere(
    local: Local, of: tuple[Stage, ...], at: int, how: str
) -> None:
    """`at`: the output tokens that the engine has. Processes are killed, also while no other
    process knows that the worker has the turn, or stopped, and their grace is over before the
    turn is."""
    await local.start(2, 2, drain_s=0.2)
    workers = local.of("worker")
    if how == "unreported":
        for worker in workers:
            worker.lose(".tok.", 1_000_000)
    plan = held(at)
    turn = local.turn(plan)
    worker = await local.begun(turn)
    await turn.sink.words_at_least(at // 2)
    gone = [worker if stage == "worker" else local.parser_of(turn) for stage in of]
    await asyncio.gather(*(one.leave() if how == "stopped" else one.kill() for one in gone))
    for worker in workers:
        worker.losing.clear()
    plan.go.set()
    await turn.whole(60, switches=int("worker" in of))
    assert local.parser_of(turn) not in gone


@pytest.mark.parametrize("instances", [1, 2])
async def test_loss_of_worker_and_parser_is_one_error(local: Local, instances: int) -> None:
    await local.start(instances, instances)
    turn = local.turn(held(20))
    await turn.sink.words_at_least(10)
    await asyncio.gather(local.worker_of(turn).kill(), local.parser_of(turn).kill())
    end = await turn.finished()
    assert isinstance(end, Failed)
    assert (end.error.kind, end.error.message) == (ErrorKind.ENGINE, BOTH_LOST)


@pytest.mark.parametrize("what", ["prepared", "accepted", "taken"])
async def test_a_message_lost_before_the_first_token_is_replaced(local: Local, what: str) -> None:
    """The event that a turn is prepared, the answer to a turn request, the answer to a generate
    request."""
    await local.start(2, 1, 1)
    (frontend,), (preprocessor,), (parser,) = (
        local.of(s) for s in ("frontend", "preprocessor", "parser")
    )
    lossy = {
        "prepared": [(preprocessor, f".evt.{frontend.id}"), (parser, f".evt.{frontend.id}")],
        "accepted": [(preprocessor, "_INBOX")],
        "taken": [(worker, "_INBOX") for worker in local.of("worker")],
    }
    lost = [sender.lose(subject) for sender, subject in lossy[what]]
    turn = local.turn(Plan(length=300, pace_s=0.01))
    await turn.whole(300)
    assert any(lost)
    await eventually(lambda: not any(worker.turns for worker in local.of("worker")))


async def test_output_of_a_dead_parser_is_not_retracted(local: Local) -> None:
    """The worker dies while the new parser has only the beginning of what the old one had shown."""
    await local.start(2, 2)
    plan = held(50)
    turn = local.turn(plan)
    await turn.sink.words_at_least(40)
    worker, parser = local.worker_of(turn), local.parser_of(turn)
    successor = other(local, parser)

    def cut(data: bytes) -> bytes:
        """The successor receives the first tokens and no more."""
        frame = decode_tokens(data)
        entries = [
            replace(entry, ids=entry.ids[:10], logprobs=None, finish=None)
            for entry in frame.entries
        ]
        return msgspec.json.encode(replace(frame, entries=entries))

    successor.changing.append((subjects.tokens(successor.id), cut))
    await parser.kill()
    await eventually(lambda: successor.received.get(turn.id, 0) >= 10)
    await worker.kill()
    plan.go.set()
    end = await turn.finished()
    assert isinstance(end, Failed), "to continue would repeat words with others"


async def test_a_frontend_after_its_grace_ends_its_streams_with_an_error(local: Local) -> None:
    await local.start()
    frontend = await local.add("frontend", drain_s=0.3)
    await local.completed()
    turn = local.turn(held(20))
    await turn.sink.words_at_least(10)
    await frontend.leave()
    end = await turn.finished()
    assert isinstance(end, Failed)
    (worker,) = local.of("worker")
    await eventually(lambda: not worker.turns)


async def test_a_resumed_turn_keeps_its_limits_and_counts(local: Local) -> None:
    await local.start(2)
    plan = held(20, length=100)
    plan.cached = 10_000
    turn = local.turn(plan, max_tokens=50, min_tokens=30, logprobs=0)
    await turn.sink.words_at_least(16)
    dying = local.worker_of(turn)
    successor = other(local, dying)
    sent: list[TokenEntry] = []

    def note(subject: str, data: bytes) -> None:
        if ".tok." in subject:
            sent.extend(decode_tokens(data).entries)

    successor.watching.append(note)
    await dying.kill()
    plan.go.set()
    end = await turn.whole(46, switches=1)
    sampling = successor.engine.seen[-1].sampling
    assert (sampling.max_tokens, sampling.min_tokens) == (30, 10)
    assert (end.reason, end.usage.output) == (FinishReason.LENGTH, 50)
    assert end.usage.cached == end.usage.prompt, (
        "tokens of the first attempt are not part of the prompt"
    )
    logprobs = [tops for entry in sent for tops in entry.logprobs or [[]] * len(entry.ids)]
    assert [len(tops) for tops in logprobs] == [0] * 20 + [1] * 30


async def test_a_stream_that_its_worker_has_lost_goes_on_elsewhere(local: Local) -> None:
    """The end is lost, and the worker drops the stream before the parser requests it again."""
    await local.start(2, 1)
    plan = held(60, length=58)
    turn = local.turn(plan)
    await turn.sink.words_at_least(50)
    worker, (parser,) = local.worker_of(turn), local.of("parser")
    lost = worker.lose(f".tok.{parser.id}", 1)

    def expire(subject: str, data: bytes) -> None:
        """Drops the finished stream as if its time to linger were over."""
        if ".tok." in subject and any(entry.finish for entry in decode_tokens(data).entries):
            for tick in worker.process.on_tick:
                asyncio.get_running_loop().call_soon(tick, math.inf)

    worker.watching.append(expire)
    # Nothing more is sent before the stream is gone: the end is in the frame that is lost.
    plan.go.set()
    end = await turn.whole(58, switches=1)
    assert end.reason is FinishReason.STOP
    assert lost
    await eventually(lambda: not parser.turns)


async def test_an_unreadable_parse_context_is_one_error_at_once(local: Local) -> None:
    await local.start(1, 1, 1)
    (frontend,), (preprocessor,) = local.of("frontend"), local.of("preprocessor")
    spoiled = msgspec.Raw(msgspec.json.encode({"frontend": frontend.id}))
    preprocessor.changing.append(generate_requests(lambda r: replace(r, context=spoiled)))
    end = await local.turn(held(5)).finished()
    assert isinstance(end, Failed)
    assert "could not be parsed" in end.error.message
    await local.idle()
    preprocessor.changing.clear()
    await local.turn(Plan(length=10)).whole(10)
