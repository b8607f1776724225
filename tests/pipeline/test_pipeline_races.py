"""Whatever is lost, late or dead: a turn ends once, whole, and never of two decodings."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from schemas.errors import EngineFailed, ErrorKind
from schemas.events import Failed, FinishReason
from services.preprocessor import service
from services.preprocessor.generation import generate_request
from tests.conftest import eventually
from tests.pipeline.local import Local, Model, Plan, Service


def other(local: Local, one: Service) -> Service:
    return next(s for s in local.of(one.stage) if s is not one)


def held(at: int, length: int = 60) -> Plan:
    """A turn that stands still after `at` tokens until its `go` is set."""
    return Plan(length=length, hold_at=at, go=asyncio.Event())


async def test_turns_side_by_side(local: Local) -> None:
    await local.start(2, 2, 2)
    turns = [local.turn(Plan(length=n)) for n in range(1, 20)]
    for n, turn in enumerate(turns, 1):
        end = await turn.whole(n)
        assert end.reason is FinishReason.STOP
        assert end.usage.output == n + 5


async def test_a_worker_that_dies_in_prefill_is_replaced(local: Local) -> None:
    await local.start(2)
    plan = held(0)
    turn = local.turn(plan)
    await (await local.begun(turn)).kill()
    plan.go.set()
    await turn.whole(60)


async def test_a_worker_and_its_parser_that_die_in_prefill_are_replaced(local: Local) -> None:
    await local.start(2, 2)
    plan = held(0)
    turn = local.turn(plan)
    worker = await local.begun(turn)
    parser = next(p for p in local.of("parser") if p.id == worker.core._turns[turn.id].stream.parser)
    await asyncio.gather(worker.kill(), parser.kill())
    plan.go.set()
    await turn.whole(60)


async def test_a_worker_and_its_parser_that_die_in_mid_turn_are_one_clear_error(local: Local) -> None:
    await local.start(2, 2)
    plan = held(20)
    turn = local.turn(plan)
    await turn.sink.words_at_least(10)
    await asyncio.gather(local.server_of(turn.id, "worker").kill(), local.server_of(turn.id, "parser").kill())
    end = await turn.finished()
    assert isinstance(end, Failed)
    assert end.error.kind is ErrorKind.ENGINE
    assert "lost" in end.error.message


@pytest.mark.parametrize("what", ["prepared", "accepted", "taken"])
async def test_a_word_that_is_lost_on_the_way_in_costs_little(local: Local, what: str) -> None:
    """The event that a turn is prepared, the answer to a turn request, the answer to a generate request."""
    await local.start(2, 1, 1)
    (frontend,), (preprocessor,), (parser,) = (local.of(s) for s in ("frontend", "preprocessor", "parser"))
    lost = []
    if what == "prepared":
        for sender in (preprocessor, parser):
            lost.append(sender.lose(f".evt.{frontend.id}"))
    elif what == "accepted":
        lost.append(preprocessor.lose("_INBOX"))
    else:
        lost += [worker.lose("_INBOX") for worker in local.of("worker")]
    turn = local.turn(Plan(length=300, pace_s=0.01))
    await turn.whole(300)
    assert any(lost)
    await eventually(lambda: not any(w.engine and w.engine.running for w in local.of("worker")))


async def test_a_refusal_that_is_lost_is_said_again(local: Local) -> None:
    await local.start()
    (frontend,), (preprocessor,) = (local.of(s) for s in ("frontend", "preprocessor"))
    lost = preprocessor.lose(f".evt.{frontend.id}")
    turn = local.turn(seed=2**70)
    with pytest.raises(Exception, match="seed"):
        await asyncio.wait_for(turn.task, 10)
    assert lost


async def test_what_a_dead_parser_showed_is_not_taken_back(local: Local) -> None:
    """The worker dies while the new parser has only the beginning of what the old one had shown."""
    await local.start(2, 2)
    plan = held(50)
    turn = local.turn(plan)
    await turn.sink.words_at_least(40)
    worker, parser = local.server_of(turn.id, "worker"), local.server_of(turn.id, "parser")
    heir = other(local, parser)
    original = heir.core._shard.take

    def half(entry, sender):  # type: ignore[no-untyped-def]
        """The heir gets the first tokens and no more."""
        if entry.attempt == 1 and entry.ids:
            import msgspec

            entry = msgspec.structs.replace(entry, ids=entry.ids[:10], finish=None)
        return original(entry, sender)

    heir.core._shard.take = half
    await parser.kill()
    await eventually(lambda: turn.id in heir.core._shard.turns and len(heir.core._shard.turns[turn.id].ids) >= 10)
    await worker.kill()
    plan.go.set()
    end = await turn.finished()
    assert isinstance(end, Failed), "going on from the tenth word would say the rest twice, and differently"


SILENCE = pytest.mark.parametrize("silence", ["cut", "mute"])
"""A process that hears nothing and is not heard, and one that only is not heard."""


@SILENCE
async def test_a_parser_that_was_given_up_comes_back_clean(local: Local, silence: str) -> None:
    await local.start(1, 2)
    plans = [held(20) for _ in range(6)]
    turns = [local.turn(plan) for plan in plans]
    for turn in turns:
        await turn.sink.words_at_least(10)
    (worker,) = local.of("worker")
    deaf = local.of("parser")[0]
    heir = other(local, deaf)
    assert deaf.core._shard.turns
    setattr(deaf, silence, True)
    await eventually(lambda: len(heir.core._shard.turns) == len(turns))
    setattr(deaf, silence, False)
    await eventually(lambda: worker.process.registry.get("parser", deaf.id) is not None)
    await eventually(lambda: not deaf.core._shard.turns)
    for plan in plans:
        plan.go.set()
    for turn in turns:
        await turn.whole(60)
    await heir.leave()
    again = [local.turn(Plan(length=n)) for n in range(20)]
    for n, turn in enumerate(again):
        await turn.whole(n)
    await eventually(lambda: all(s.delivered for s in worker.core._outbox._all()))


@SILENCE
async def test_numbers_start_anew_for_a_receiver_that_was_given_up(local: Local, silence: str) -> None:
    """Whoever was taken for dead is sent to again: its old count of frames must not hold back credit."""
    await local.start(1, 1)
    (worker,), (parser,), (frontend,) = (local.of(s) for s in ("worker", "parser", "frontend"))
    for _ in range(3):
        await asyncio.gather(*(local.turn(Plan(length=100)).whole(100) for _ in range(10)))
    for deaf, sender in ((parser, worker), (frontend, parser)):
        setattr(deaf, silence, True)
        await eventually(lambda d=deaf, s=sender: s.process.registry.get(d.stage, d.id) is None)  # type: ignore[misc]
        setattr(deaf, silence, False)
        await eventually(lambda: local.complete)
        await local.turn(Plan(length=30)).whole(30)
        await eventually(lambda s=sender, d=deaf: s.core._sender._links[d.id].under_way == 0)  # type: ignore[misc]
    await eventually(lambda: not parser.core._shard.turns)


@SILENCE
async def test_a_frontend_that_was_given_up_ends_its_turns(local: Local, silence: str) -> None:
    """What nobody has any more is one clear error. What the worker let go before the parser did is resumed, and what
    has shown nothing begins anew."""
    await local.start()
    (worker,), (parser,), (frontend,) = (local.of(s) for s in ("worker", "parser", "frontend"))
    plans = held(20), held(0)
    shown, silent = (local.turn(plan) for plan in plans)
    await shown.sink.words_at_least(10)
    await silent.task
    setattr(frontend, silence, True)
    await eventually(lambda: all(s.process.registry.get("frontend", frontend.id) is None for s in (worker, parser)))
    setattr(frontend, silence, False)
    for plan in plans:
        plan.go.set()
    end = await shown.finished()
    if isinstance(end, Failed):
        assert "cut off" in end.error.message
    else:
        await shown.whole(60)
    await silent.whole(60)
    await eventually(lambda: not worker.engine.running)


@SILENCE
async def test_a_worker_that_was_given_up_stops_decoding(local: Local, silence: str) -> None:
    await local.start(2)
    turn = local.turn(Plan(length=400, pace_s=0.01))
    await turn.sink.words_at_least(10)
    deaf = local.server_of(turn.id, "worker")
    setattr(deaf, silence, True)
    heir = other(local, deaf)
    await eventually(lambda: turn.id in heir.core._turns)
    setattr(deaf, silence, False)
    await eventually(lambda: not deaf.engine.running)
    await turn.whole(400, switches=1)


async def test_a_request_for_a_replay_that_is_lost_is_made_again(local: Local) -> None:
    """A frame in the middle is lost and the request for it, too; everything after it arrives."""
    await local.start()
    (worker,), (parser,), (frontend,) = (local.of(s) for s in ("worker", "parser", "frontend"))
    for sender, receiver, subject in ((worker, parser, ".tok."), (parser, frontend, ".evt.")):
        plan = held(20, length=20)
        plan.pace_s = 0.02
        turn = local.turn(plan)
        await turn.sink.words_at_least(10)
        asked = receiver.lose(f".replay.{sender.stage}")
        frames = sender.lose(subject)
        plan.go.set()
        await turn.whole(20)
        assert frames
        assert asked


async def test_an_end_that_is_lost_twice_is_not_forgotten(local: Local) -> None:
    await local.start()
    (parser,) = local.of("parser")
    plan = held(20, length=25)
    turn = local.turn(plan)
    await turn.sink.words_at_least(10)
    lost = parser.lose(".evt.", 10)
    plan.go.set()
    await turn.whole(25)
    assert len(lost) == 10
    await eventually(lambda: not parser.core._shard.turns)


async def test_a_stream_that_cannot_be_parsed_is_one_clear_error(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    await local.start()
    (worker,) = local.of("worker")

    def unknown(*arguments, **named):  # type: ignore[no-untyped-def]
        request = generate_request(*arguments, **named)
        context = msgspec.json.decode(request.context) | {"family": "of_tomorrow"}
        return msgspec.structs.replace(request, context=msgspec.Raw(msgspec.json.encode(context)))

    monkeypatch.setattr(service, "generate_request", unknown)
    turn = local.turn(Plan(length=2000, pace_s=0.01))
    end = await turn.finished()
    assert isinstance(end, Failed)
    assert "could not be parsed" in end.error.message
    await eventually(lambda: not worker.engine.running)


async def test_a_turn_for_a_parser_that_is_gone_goes_to_another(local: Local) -> None:
    """The preprocessor has not noticed yet what the worker knows already."""
    await local.start(1, 2)
    (worker,), (preprocessor,) = local.of("worker"), local.of("preprocessor")
    gone = local.of("parser")[0]
    stays = other(local, gone)
    beat = preprocessor.process.registry.get("parser", gone.id)
    await gone.kill()
    await eventually(lambda: worker.process.registry.get("parser", gone.id) is None)
    preprocessor.core._placement.shard = lambda: beat.id
    turn = local.turn(Plan(length=5))
    await turn.whole(5)
    assert not stays.cut


async def test_tokens_for_a_frontend_that_is_gone_are_not_kept(local: Local) -> None:
    """A parser that hears of a turn after it has forgotten the turn's frontend."""
    await local.start(1, 2)
    (worker,), (frontend,) = local.of("worker"), local.of("frontend")
    worker.process.registry._left.pop()  # this worker does not mind that a frontend leaves …
    worker.process.registry.on_leave(lambda beat: beat.stage == "parser" and worker.core._peer_left(beat))
    plan = held(20, length=2000)
    plan.pace_s = 0.01
    turn = local.turn(plan)
    await turn.sink.words_at_least(10)
    parser = local.server_of(turn.id, "parser")
    heir = other(local, parser)
    await frontend.kill()
    await eventually(lambda: heir.process.registry.get("frontend", frontend.id) is None)
    await parser.kill()  # … and hands its turns on
    await eventually(lambda: turn.id in heir.core._shard.turns)
    await eventually(lambda: not heir.core._shard.turns)
    plan.go.set()
    await eventually(lambda: not worker.core._turns)


async def test_a_client_that_leaves_while_its_turn_is_resumed_leaves_nothing(local: Local) -> None:
    await local.start(2)
    (frontend,) = local.of("frontend")
    turn = local.turn(held(20))
    await turn.sink.words_at_least(10)
    opened = await turn.task
    local.of("preprocessor")[0].core._preparation.prompt = lambda *_a, **_k: asyncio.Event().wait()
    await local.server_of(turn.id, "worker").kill()
    await eventually(lambda: opened.attempt > 1)
    opened.cancel("hangup")
    await eventually(lambda: not any("resume" in t.get_name() for t in frontend.process._tasks))


async def test_a_frontend_whose_grace_is_over_tells_its_clients(local: Local) -> None:
    await local.start()
    frontend = await local.add("frontend", drain_s=0.3)
    await eventually(lambda: local.complete)
    turn = local.turn(held(20))
    await turn.sink.words_at_least(10)
    await frontend.leave()
    end = await turn.finished(1)
    assert isinstance(end, Failed)
    (worker,) = local.of("worker")
    await eventually(lambda: not worker.engine.running)


async def test_a_worker_whose_grace_is_over_hands_its_turns_on(local: Local) -> None:
    await local.start()
    plan = held(20)
    turn = local.turn(plan)
    await turn.sink.words_at_least(10)
    (leaving,) = local.of("worker")
    await local.add("worker")
    await eventually(lambda: local.complete)
    object.__setattr__(leaving.process, "config", leaving.process.config.__class__(bus=local.bus, drain_s=0.2))
    await leaving.leave()
    plan.go.set()
    await turn.whole(60, switches=1)


async def test_a_second_interruption_of_the_same_turn(local: Local) -> None:
    await local.start(3)
    plan = Plan(length=300, pace_s=0.01)
    turn = local.turn(plan)
    for words in (30, 80):
        await turn.sink.words_at_least(words)
        await local.server_of(turn.id, "worker").kill()
        await eventually(lambda: any(turn.id in w.core._turns for w in local.of("worker")))
    end = await turn.whole(300, switches=2)
    assert end.usage.output == 305


async def test_max_tokens_counts_what_was_said_before(local: Local) -> None:
    await local.start(2)
    for at, limit in ((20, 30), (20, 20)):
        plan = held(at)
        turn = local.turn(plan, max_tokens=limit)
        await turn.sink.words_at_least(at - 4)
        await local.server_of(turn.id, "worker").kill()
        plan.go.set()
        await local.add("worker")
        end = await turn.whole(limit - 4, switches=1)
        assert (end.reason, end.usage.output) == (FinishReason.LENGTH, limit)


async def test_a_worker_drains_as_soon_as_its_last_turn_has_arrived(local: Local) -> None:
    await local.start()
    (worker,) = local.of("worker")
    turn = local.turn(held(3, length=5))
    await local.begun(turn)
    leaving = asyncio.create_task(worker.leave())
    await eventually(lambda: worker.process.draining)
    local.plans[turn.id].go.set()
    await turn.whole(5)
    await asyncio.wait_for(leaving, 2)


async def test_a_draining_worker_finishes_what_waits_in_its_queue(local: Local) -> None:
    for stage in ("parser", "preprocessor", "frontend"):
        await local.add(stage)  # type: ignore[arg-type]
    worker = await local.add("worker", slots=1)
    await eventually(lambda: local.complete)
    plan = held(10, length=30)
    first = local.turn(plan)
    await local.begun(first)
    waiting = local.turn(Plan(length=5))
    await waiting.task
    leaving = asyncio.create_task(worker.leave())
    await eventually(lambda: worker.process.draining)
    plan.go.set()
    await first.whole(30)
    await waiting.whole(5)
    await leaving


async def test_limits_and_counts_of_a_resumed_turn(local: Local) -> None:
    await local.start(2)
    plan = held(20, length=100)
    plan.cached = 10_000
    turn = local.turn(plan, max_tokens=50, min_tokens=30, logprobs=0)
    await turn.sink.words_at_least(16)
    dying = local.server_of(turn.id, "worker")
    heir = other(local, dying)
    await dying.kill()
    plan.go.set()
    end = await turn.whole(46, switches=1)
    sampling = heir.engine.seen[-1].sampling
    assert (sampling.max_tokens, sampling.min_tokens) == (30, 10)
    assert (end.reason, end.usage.output) == (FinishReason.LENGTH, 50)
    assert end.usage.cached == end.usage.prompt, "tokens of the first attempt are not part of the prompt"
    logprobs = heir.core._outbox._lingering[turn.id, 2].logprobs
    assert [len(tops) for tops in logprobs] == [0] * 20 + [1] * 30


@pytest.mark.parametrize("victim", ["parser", "worker"])
async def test_long_turns_move_in_frames_of_bearable_size(local: Local, victim: str) -> None:
    """A dozen turns of 50,000 tokens at once: what is sent again is cut, and nobody is taken for dead meanwhile."""
    await local.start(2, 2)
    length = 50_000
    plans = [Plan(length=length, burst=2000, hold_at=length, go=asyncio.Event()) for _ in range(12)]
    turns = [local.turn(plan, max_tokens=length + 1000) for plan in plans]
    for turn in turns:
        await eventually(lambda t=turn: t.sink.words > 0 and len(t.sink.texts[-1]) > 300_000, 30)  # type: ignore[misc]
    gone = local.server_of(turns[0].id, victim)
    await gone.kill()
    for plan in plans:
        plan.go.set()
    for turn in turns:
        await turn.whole(length, switches=1, timeout_s=60)
    assert max(s.largest for s in local.services) < 1_000_000


async def test_two_models_on_one_bus_whatever_they_are_called(local: Local, demo_model: Path) -> None:
    await local.start(1, 2)
    odd = Model(demo_model, 'Größe/v1.5 *.> "x"\t[1]')
    for stage in ("worker", "parser", "preprocessor"):
        await local.add(stage, model=odd)  # type: ignore[arg-type]
    await eventually(lambda: local.complete)
    assert [card.name for card in local.gateway.models()] == sorted([odd.name, local.model.name])
    plan = held(20)
    turns = [local.turn(plan, model=odd.name), local.turn(Plan(length=40))]
    await turns[0].sink.words_at_least(10)
    await local.server_of(turns[0].id, "parser").kill()
    await local.add("parser", model=odd)
    plan.go.set()
    await turns[0].whole(60)
    await turns[1].whole(40)


async def test_many_processes_may_join_at_once(local: Local) -> None:
    await local.start()
    turns = [local.turn(Plan(length=200, pace_s=0.002)) for _ in range(10)]
    stages = [stage for stage in ("worker", "parser", "preprocessor", "frontend") for _ in range(5)]
    await asyncio.gather(*(local.add(stage) for stage in stages))  # type: ignore[arg-type]
    await eventually(lambda: local.complete, 20)
    more = [local.turn(Plan(length=20)) for _ in range(40)]
    for turn, words in [(t, 200) for t in turns] + [(t, 20) for t in more]:
        await turn.whole(words)


async def test_the_last_credit_that_is_lost_holds_up_nothing(local: Local) -> None:
    await local.start()
    (frontend,), (parser,), (worker,) = (local.of(stage) for stage in ("frontend", "parser", "worker"))
    lost = [frontend.lose(".credit.", 3), parser.lose(".credit.", 3)]
    await local.turn(Plan(length=20)).whole(20)
    await eventually(lambda: all(lost))
    await eventually(lambda: not parser.core._shard.turns)
    await eventually(lambda: not list(worker.core._outbox.undelivered()))


async def test_a_stream_that_its_worker_has_lost_goes_on_elsewhere(local: Local) -> None:
    """The end is lost on the way, and let go before the shard misses it."""
    await local.start(2, 1)
    plan = held(60, length=58)
    turn = local.turn(plan)
    await turn.sink.words_at_least(50)
    worker, (parser,) = local.server_of(turn.id, "worker"), local.of("parser")
    lost = worker.lose(f".tok.{parser.id}", 1)
    original = worker.core._outbox.ended

    def ended(stream, now):  # type: ignore[no-untyped-def]
        original(stream, now)
        asyncio.get_running_loop().call_soon(worker.core._outbox.expire, float("inf"))

    worker.core._outbox.ended = ended
    # Nothing more is sent before the stream is gone: the end is in the frame that is lost.
    plan.go.set()
    end = await turn.whole(58, switches=1)
    assert end.reason is FinishReason.STOP
    assert lost
    await eventually(lambda: not parser.core._shard.turns)


@pytest.mark.parametrize("context", ['{"frontend": "FRONTEND"}', '{"frontend": 7}', "[]", '"x"'])
async def test_an_unreadable_parse_context_is_one_error_at_once(
    local: Local, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local.start(1, 1, 1)
    (frontend,), (worker,), (parser,) = (local.of(stage) for stage in ("frontend", "worker", "parser"))

    def spoiled(*arguments, **named):  # type: ignore[no-untyped-def]
        raw = msgspec.Raw(context.replace("FRONTEND", frontend.id).encode())
        return msgspec.structs.replace(generate_request(*arguments, **named), context=raw)

    monkeypatch.setattr(service, "generate_request", spoiled)
    plan = held(5)
    turn = local.turn(plan)
    if "FRONTEND" in context:
        end = await turn.finished(3)
        assert isinstance(end, Failed)
        assert "could not be parsed" in end.error.message
    else:
        with pytest.raises(EngineFailed, match="could not be parsed"):
            await asyncio.wait_for(turn.task, 3)
    await eventually(lambda: not worker.engine.running and not parser.core._shard.turns and not local.gateway._turns)
    monkeypatch.undo()
    await local.turn(Plan(length=10)).whole(10)
