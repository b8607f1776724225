"""SGLang's token interface: both forms of its streams, its errors, and what its settings exclude."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import OutputFormat
from schemas.errors import EngineFailed, Invalid, Overloaded
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDied
from services.worker.engines.registry import open_engine
from services.worker.engines.remote.answer import AnswerJudge
from services.worker.engines.remote.dialect import ServerFacts, ServerRequest
from services.worker.engines.remote.event_reader import BadAnswer
from services.worker.engines.remote.http import HttpRefusal, ServerHttp
from services.worker.engines.remote.sglang.dialect import SglangDialect
from tests.kit.engines import EMPTY_MODEL, PROMPT, begun, ids_of, request, rest, run
from tests.kit.every import for_each
from tests.kit.waiting import eventually
from tests.worker.fake_server import Event
from tests.worker.fake_sglang_server import EOS, FakeSglangServer, fake_sglang_server

KV_EVENTS = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "dp_size": 1}


class Fleet:
    """Servers with an engine before each, which end with the test."""

    def __init__(self, stack: AsyncExitStack, model: Path) -> None:
        self._stack = stack
        self._model = model
        self.server: FakeSglangServer

    async def start(self, *, model: str = EMPTY_MODEL, **options: Any) -> Any:
        """Returns the engine before a new server."""
        (self._model / "config.json").write_text(model)
        self.server = await self._stack.enter_async_context(fake_sglang_server(**options))
        return await self.attach()

    async def attach(self) -> Any:
        """Returns another engine before the server."""
        config = WorkerConfig(model=str(self._model), engine_url=self.server.url)
        engine: Any = open_engine("sglang-server", config)
        engine.info = await engine.start()
        self._stack.push_async_callback(engine.stop, 1.0)
        return engine


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(stack, tmp_path)


# -- answers
# --------------------------------------------------------------------------------------------------


class Answer:
    """An answer in one of the forms, and the request that it answers."""

    def __init__(self, ids: list[int], pieces: list[int], *, repeats: bool, stops: bool) -> None:
        self.ids = ids
        self.sent = [*ids, EOS] if stops else ids
        self.stops = stops
        self.events: list[Any] = []
        at = 0
        while at < len(self.sent):
            since, at = at, at + pieces[len(self.events) % len(pieces)]
            ids = self.sent[0 if repeats else since : at]
            meta = {"id": "r", "prompt_tokens": len(PROMPT), "cached_tokens": 16}
            meta["completion_tokens"] = min(at, len(self.sent))
            meta["output_token_logprobs"] = [[-0.5, token, None] for token in ids]
            self.events.append({"output_ids": ids, "meta_info": meta})
        self.events[-1]["meta_info"]["finish_reason"] = (
            {"type": "stop", "matched": EOS} if stops else {"type": "length", "length": at}
        )

    def read(self) -> tuple[list[int], Exception | None]:
        """Returns the tokens that a turn gets, and the error with which it ends."""
        asked = request(stop_ids=[EOS], max_tokens=len(self.sent), logprobs=0)
        reader = SglangDialect().reader(asked, ServerRequest("", {"rid": "r"}))
        judge, deltas = AnswerJudge(asked, PROMPT, 512), []
        try:
            for event in self.events:
                deltas.append(judge.read(reader.read(json.dumps(event).encode())))
            deltas.append(judge.end())
        except (EngineFailed, HttpRefusal) as error:
            return ids_of(filter(None, deltas)), error
        last = deltas[-1]
        assert last is not None
        assert last.stop_id == (EOS if self.stops else None)
        assert last.finish is (FinishReason.STOP if self.stops else FinishReason.LENGTH)
        return ids_of(filter(None, deltas)), None


answers = st.builds(
    Answer,
    # Few tokens, so that parts are often equal.
    st.lists(st.integers(8, 10), min_size=1, max_size=12),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    repeats=st.booleans(),
    stops=st.booleans(),
)


@given(answers)
def test_both_forms_give_the_tokens(answer: Answer) -> None:
    assert answer.read() == (answer.ids, None)


def lose(events: list[Any], random: Random) -> None:
    del events[random.randrange(len(events))]


def repeat(events: list[Any], random: Random) -> None:
    at = random.randrange(len(events))
    events.insert(random.randint(at, len(events)), events[at])


def swap(events: list[Any], random: Random) -> None:
    one, other = random.randrange(len(events)), random.randrange(len(events))
    events[one], events[other] = events[other], events[one]


def change_id(events: list[Any], random: Random) -> None:
    """Also one that was sent before."""
    ids = random.choice(events)["output_ids"]
    ids[random.randrange(len(ids))] = random.choice([11, 512, -1, EOS, True, "8", None])


def drop_id(events: list[Any], random: Random) -> None:
    ids = random.choice(events)["output_ids"]
    del ids[random.randrange(len(ids))]


def count_otherwise(events: list[Any], random: Random) -> None:
    counts = random.choice(events)["meta_info"]
    counts[random.choice(["prompt_tokens", "completion_tokens"])] += random.choice([-1, 1])


def hide(events: list[Any], random: Random) -> None:
    meta = random.choice(events)["meta_info"]
    del meta[random.choice(["completion_tokens", "prompt_tokens", "output_token_logprobs", "id"])]


def take_other(events: list[Any], random: Random) -> None:
    random.choice(events)["meta_info"]["id"] = "another"


def write_text(events: list[Any], random: Random) -> None:
    event = random.choice(events)
    event["text"] = event.pop("output_ids")


def end_otherwise(events: list[Any], random: Random) -> None:
    reasons: list[Any] = [None, {"type": "eos"}, {"type": "stop"}, {"type": "length"}]
    reasons += [{"type": "stop", "matched": matched} for matched in (EOS, 9, "NaN happened")]
    random.choice(events)["meta_info"]["finish_reason"] = random.choice(reasons)


DAMAGES: list[Callable[[list[Any], Random], None]] = [
    *(lose, repeat, swap, change_id, drop_id, count_otherwise, hide, take_other),
    *(write_text, end_otherwise),
]


@for_each(DAMAGES, name=lambda damage: damage.__name__)
def test_damaged_answer_never_gives_other_tokens(
    damage: Callable[[list[Any], Random], None],
) -> None:
    errors = list[Exception]()

    @given(answers, st.integers(0, 2**32))
    def check(answer: Answer, seed: int) -> None:
        damage(answer.events, Random(seed))
        ids, error = answer.read()
        if error is None:
            assert ids == answer.ids
        else:
            assert ids == answer.ids[: len(ids)]
            errors.append(error)

    check()
    assert errors, "this damage is never noticed"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[8], [8, 9], [9, 9, 10]], "changed or dropped"),
        ([[8, 9], [8, 9, 10], [8, 10]], "changed or dropped"),
        ([[8, 9], [8]], "changed or dropped"),
        ([[8], [8, 9], [8, 9, 10, 11]], None),
    ],
)
def test_repeating_stream_keeps_what_it_has_sent(
    parts: list[list[int]], message: str | None
) -> None:
    reader = SglangDialect().reader(request(), ServerRequest("", {"rid": "r"}))
    got = list[int]()

    def read() -> None:
        for ids in parts:
            meta = {"id": "r", "prompt_tokens": 3, "completion_tokens": len(ids)}
            event = {"output_ids": ids, "meta_info": meta}
            got.extend(reader.read(json.dumps(event).encode()).ids)

    if message is None:
        read()
        assert got == parts[-1]
    else:
        with pytest.raises(BadAnswer, match=message):
            read()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(None, Overloaded), (400, Invalid), (500, EngineDied), (503, Overloaded)],
)
@pytest.mark.parametrize("in_stream", [True, False])
async def test_aborted_turn_has_the_error_of_its_status(
    fleet: Fleet, status: int | None, kind: type[Exception], in_stream: bool
) -> None:
    """In mid-stream; what the event has of tokens is not read, since it may repeat one."""
    engine = await fleet.start(incremental_streaming_output=True)
    finish = {"type": "abort", "message": "no room", "status_code": status}

    def abort(events: list[Event]) -> list[Event | bytes]:
        (event,) = events
        if event["meta_info"]["completion_tokens"] < 3:
            return [event]
        if not in_stream:
            return [{"error": {"message": "no room", "code": status or 503}}]
        meta = {"id": event["meta_info"]["id"], "finish_reason": finish, "completion_tokens": 2}
        return [{"output_ids": event["output_ids"], "meta_info": meta}]

    fleet.server.lie = abort
    with pytest.raises(kind, match="no room"):
        await run(engine, request())
    assert engine.healthy(), "the server lives"


async def test_full_queue_is_asked_again(fleet: Fleet) -> None:
    """SGLang refuses in the stream."""
    engine = await fleet.start()
    fleet.server.full = 2
    assert len(ids_of(await run(engine, request()))) == 16
    attempts = {sent["rid"] for sent in fleet.server.requests[-3:]}
    assert len(attempts) == 3, "SGLang aborts the id of an answer two seconds after its end"


# -- requests
# --------------------------------------------------------------------------------------------------


async def test_all_of_a_request_is_sent(fleet: Fleet) -> None:
    engine = await fleet.start()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = request(
        "turn",
        stop_ids=[EOS],
        guided=OutputFormat("json_schema", schema=schema),
        cache_salt="tenant",
        priority=0.5,
        temperature=0.5,
        top_k=0,
        seed=2**64 - 1,
        min_tokens=99,
        presence_penalty=1.0,
        logit_bias={9: 1.5},
        logprobs=2,
        max_tokens=2,
    )
    deltas = await run(engine, asked)
    sent = fleet.server.requests[-1]
    sampling = sent["sampling_params"]
    assert json.loads(sampling.pop("json_schema")) == schema
    assert sampling == {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "n": 1,
        "min_new_tokens": 2,
        "max_new_tokens": 2,
        "sampling_seed": 2**63 - 1,
        "logit_bias": {"9": 1.5},
        "stop_token_ids": [EOS],
        "ignore_eos": False,
    }
    assert sent["rid"].startswith("turn-")
    assert (sent["cache_salt"], sent["priority"], sent["top_logprobs_num"]) == ("tenant", 500, 2)
    (first, *_) = (row for delta in deltas for row in delta.logprobs or [])
    assert [token for token, _ in first] == [ids_of(deltas)[0], 3, 4][: len(first)]
    assert len(first) > 1


async def test_grammar_of_a_turn_is_sent_where_llguidance_reads_it(fleet: Fleet) -> None:
    engine = await fleet.start()
    await run(engine, request(grammar='start: "a"'))
    sampling = fleet.server.requests[-1]["sampling_params"]
    assert (sampling["ebnf"], sampling["ignore_eos"]) == ('start: "a"', False)


async def test_stop_tokens_beside_ignore_eos_are_refused(fleet: Fleet) -> None:
    """SGLang would go on after them."""
    engine = await fleet.start()
    with pytest.raises(Invalid, match="ignore_eos"):
        await run(engine, request(stop_ids=[9], ignore_eos=True))
    assert len(ids_of(await run(engine, request(ignore_eos=True)))) == 16


async def test_end_token_of_the_server_alone_is_a_broken_answer(fleet: Fleet) -> None:
    engine = await fleet.start()
    free = ids_of(await run(engine, request(max_tokens=4)))

    def stop(events: list[Event]) -> list[Event | bytes]:
        (event,) = events
        event["meta_info"]["finish_reason"] = {"type": "stop", "matched": free[0]}
        return [event]

    fleet.server.lie = stop
    with pytest.raises(BadAnswer, match=f"token {free[0]}, not a stop token of the request"):
        await run(engine, request(stop_ids=[EOS]))


async def test_abort_of_a_turn_spares_those_with_longer_names(fleet: Fleet) -> None:
    """SGLang aborts every request with an id that begins so."""
    engine = await fleet.start()
    longer = await begun(engine, request("turn-10", max_tokens=900))
    shorter = await begun(engine, request("turn-1", max_tokens=2000))
    await shorter.aclose()
    await eventually(lambda: bool(fleet.server.aborted))
    assert (await rest(longer))[-1].finish is FinishReason.LENGTH


async def test_turn_can_be_sent_again_while_its_first_attempt_is_open(fleet: Fleet) -> None:
    """SGLang refuses an id in use, and may notice a broken connection late."""
    first, second = await fleet.start(), await fleet.attach()
    attempt = await begun(first, request("turn", max_tokens=2000))
    assert len(ids_of(await run(second, request("turn")))) == 16
    await attempt.aclose()


async def test_prompts_and_outputs_fill_the_window_to_the_last_token(fleet: Fleet) -> None:
    engine = await fleet.start()
    window = engine.info.max_model_len
    prompt = (PROMPT * 100)[: window - 8]
    (*_, last) = await run(engine, request(ids=prompt, max_tokens=8))
    assert last.finish is FinishReason.LENGTH


# -- servers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "lacks", "reason"),
    [
        ({"grammar_backend": "xgrammar"}, {"grammar"}, "--grammar-backend llguidance"),
        ({"grammar_backend": "none"}, {"grammar", "guided"}, "--grammar-backend"),
        ({"skip_tokenizer_init": True}, {"grammar", "guided", "min_tokens"}, "skip-tokenizer"),
        ({"enable_priority_scheduling": False}, {"priority"}, "--enable-priority-scheduling"),
        ({"schedule_low_priority_values_first": True}, {"priority"}, "low-priority"),
        ({"enable_deterministic_inference": False}, {"seed"}, "deterministic"),
        ({"kv_events": None}, {"kv_events"}, "--kv-events-config"),
        ({"kv_events": KV_EVENTS | {"dp_size": 2}}, {"kv_events"}, "ranks"),
        ({"kv_events": KV_EVENTS | {"endpoint_host": "router"}}, {"kv_events"}, "tcp://*:5557"),
        ({"page_size": 1}, {"kv_events"}, "--page-size 16"),
        ({"speculative_algorithm": "EAGLE"}, {"kv_events"}, "pairs"),
        ({"disable_radix_cache": True}, {"kv_events", "prefix_cache"}, "caching is off"),
    ],
)
async def test_what_settings_exclude_is_lacking_with_the_flag(
    options: dict[str, Any], lacks: set[str], reason: str
) -> None:
    facts = await _describe(**{"kv_events": KV_EVENTS, **options})
    assert facts.lacking.keys() == lacks | {"retention", "vision"}
    for feature in lacks:
        assert reason in facts.lacking[feature]
    assert (facts.kv_endpoint is None) == ("kv_events" in lacks)
    assert (facts.block_tokens is None) == ("prefix_cache" in lacks)


async def test_server_has_the_address_of_its_events_and_a_window_that_its_cache_holds() -> None:
    facts = await _describe(kv_events=KV_EVENTS)
    assert facts.kv_endpoint == "tcp://127.0.0.1:5557"
    assert (facts.slots, facts.block_tokens, facts.max_model_len) == (4, 16, 4090)
    assert (await _describe(max_total_num_tokens=1000)).max_model_len == 1000 - 2 * 16
    drafts = {"speculative_eagle_topk": 4, "speculative_num_steps": 5}
    assert (await _describe(**drafts)).max_model_len == 4090 - 20


async def _describe(**options: Any) -> ServerFacts:
    async with fake_sglang_server(**options) as server:
        http = ServerHttp(server.url, None)
        try:
            return await SglangDialect().describe(http)
        finally:
            await http.close()


async def test_what_the_trials_show_is_lacking(fleet: Fleet) -> None:
    info = (await fleet.start(original_logprobs=False, honours_salts=False)).info
    assert "after the temperature" in info.lacking["top_logprobs"]
    assert "share blocks" in info.lacking["salt"]
    assert {"logprobs", "top_logprobs", "salt"}.isdisjoint(info.features)
    assert {"sampling", "seed", "min_p", "guided", "grammar", "priority"} <= info.features


async def test_server_without_a_tokenizer_encodes_nothing() -> None:
    async with fake_sglang_server(skip_tokenizer_init=True) as server:
        http = ServerHttp(server.url, None)
        dialect = SglangDialect()
        assert await dialect.tokenize(http, await dialect.describe(http), "text") is None
        await http.close()


async def test_small_pages_are_joined_to_blocks() -> None:
    assert (await _describe(page_size=1)).block_tokens == 16
    assert (await _describe(page_size=6)).block_tokens == 18


async def test_model_with_more_tokens_than_the_server_is_refused_and_spares_it(
    fleet: Fleet,
) -> None:
    """An id outside its vocabulary ends the server."""
    with pytest.raises(Invalid, match="another model than the directory"):
        await fleet.start(model=EMPTY_MODEL.replace("512", "600"))
    assert not fleet.server.engine.dead


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "0.5.9"}, "0.5.20 or newer"),
        ({"is_embedding": True}, "embeddings"),
        ({"disaggregation_mode": "decode"}, "needs both"),
        ({"page_size": "many"}, "not an SGLang server"),
    ],
)
async def test_server_that_cannot_serve_turns_is_refused(
    fleet: Fleet, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        await fleet.start(**options)


async def test_server_that_was_started_again_is_noticed(fleet: Fleet) -> None:
    engine = await fleet.start()
    fleet.server.started += 1.0
    await eventually(lambda: not engine.healthy())
