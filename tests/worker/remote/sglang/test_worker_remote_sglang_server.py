"""SGLang's properties: what its settings exclude, and which servers cannot serve."""

from typing import Any

import pytest

from schemas.errors import Invalid
from services.worker.engines.remote.dialect import ServerFacts
from services.worker.engines.remote.http import ServerHttp
from services.worker.engines.remote.sglang.dialect import SglangDialect
from tests.kit.engines import EMPTY_MODEL
from tests.kit.waiting import eventually
from tests.worker.fake_sglang_server import fake_sglang_server
from tests.worker.remote.sglang.serving import Fleet

KV_EVENTS = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "dp_size": 1}


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


async def test_small_pages_are_joined_to_blocks() -> None:
    assert (await _describe(page_size=1)).block_tokens == 16
    assert (await _describe(page_size=6)).block_tokens == 18


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
