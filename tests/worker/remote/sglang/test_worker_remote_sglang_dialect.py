"""SGLang's requests, its refusals, and its aborts."""

import json

import pytest

from schemas.conversation import OutputFormat
from schemas.errors import Invalid, Overloaded
from schemas.events import FinishReason
from services.worker.engine import EngineDied
from services.worker.engines.remote.event_reader import BadAnswer
from tests.kit.engines import PROMPT, begun, ids_of, request, rest, run
from tests.kit.waiting import eventually
from tests.worker.fake_server import Event
from tests.worker.fake_sglang_server import EOS
from tests.worker.remote.sglang.serving import Fleet


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
