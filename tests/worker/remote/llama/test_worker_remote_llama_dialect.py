"""The dialect of llama-server: its properties, its requests, its death."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from schemas.conversation import OutputFormat
from schemas.errors import Invalid
from services.worker.engines.remote.llama.dialect import LACKING
from tests.kit.engines import ids_of as output
from tests.kit.waiting import eventually
from tests.worker.conformance import Bench
from tests.worker.fake_llama_server import CONTEXT, FakeLlamaServer, fake_llama_server
from tests.worker.fake_server import FakeServer, running
from tests.worker.remote.llama.serving import WORDS, open_bench


async def test_properties_are_those_of_one_slot(bench: Bench) -> None:
    info = bench.info
    assert (info.version, info.slots, info.max_model_len) == ("b11434-515e85511", 4, CONTEXT - 3)
    assert (info.kv_tokens, info.block_tokens, info.shares_queued) == (CONTEXT, 32, False)
    assert set(info.lacking) == {
        *("kv_events", "retention", "priority", "salt", "min_tokens", "penalties"),
        *("grammar", "vision"),
    }
    assert info.lacking["salt"] == LACKING["salt"]


async def test_a_request_leaves_no_field_to_the_settings_of_the_server(
    server: FakeLlamaServer, bench: Bench
) -> None:
    form = OutputFormat("json_schema", {"type": "object"})
    sampling: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "seed": -1,
        "logit_bias": {9: -1.0},
    }
    await bench.run(bench.request(guided=form, logprobs=3, stop_ids=[5, 7], **sampling))
    guided = server.requests[-1]
    await bench.run(bench.request())
    free = server.requests[-1]
    assert guided["json_schema"] == {"type": "object"}
    assert free.keys() == guided.keys() - {"json_schema"}
    assert [guided[name] for name in ("top_k", "seed", "n_probs")] == [0, 2**32 - 2, 3]
    assert guided["logit_bias"] == [[9, -1.0]]
    assert [free[name] for name in ("temperature", "top_p", "min_p")] == [0.0, 1.0, 0.0]
    assert (free["seed"], free["logit_bias"], free["n_probs"]) == (-1, [], 0)
    assert (free["ignore_eos"], guided["ignore_eos"]) == (True, False)


async def test_a_stop_id_frees_the_slot(server: FakeLlamaServer, bench: Bench) -> None:
    server.script = WORDS
    deltas = await bench.run(bench.request(max_tokens=2000, stop_ids=[WORDS[2]]))
    assert (output(deltas), deltas[-1].stop_id) == (WORDS[:2], WORDS[2])
    await eventually(lambda: not any(slot.is_busy for slot in server.slots))
    assert max(slot.decoded for slot in server.slots) < 2000


async def test_a_server_that_was_started_again_ends_the_engine(
    server: FakeLlamaServer, bench: Bench
) -> None:
    await bench.run(bench.request())
    before = server.pulses
    await eventually(lambda: server.pulses >= before + 2)
    assert bench.engine.healthy()
    server.restart()
    await eventually(lambda: not bench.engine.healthy())


async def test_a_server_without_the_interface_is_refused_with_what_to_do(model: Path) -> None:
    class Other(FakeServer):
        def routes(self) -> list[web.RouteDef]:
            return []

    async with running(Other()) as other:
        with pytest.raises(Invalid, match=r"is not a llama-server .* `llama-server -m FILE\.gguf`"):
            async with open_bench(other, model):
                pass
    async with fake_llama_server(model) as server:
        server.decodes = False
        with pytest.raises(Invalid, match="does not decode"):
            async with open_bench(server, model):
                pass
        server.settings = {}
        with pytest.raises(Invalid, match=r"is not a llama-server with a model .*n_ctx"):
            async with open_bench(server, model):
                pass
