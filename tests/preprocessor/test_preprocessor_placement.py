"""The encoding of requests for workers of different releases."""

import msgspec
import pytest
from msgspec import Raw

from schemas.control import ModelCard
from schemas.conversation import Sampling
from schemas.frames import GenerateRequest, decode_generate, pack_ids
from services.preprocessor.routing.kv_view import KvView
from services.preprocessor.routing.placement import Placement
from services.preprocessor.routing.router import Router
from tests.kit.processes import MakeProcess, Reported
from tests.kit.waiting import eventually

REQUEST = GenerateRequest("t", 1, "m", pack_ids(range(99)), "p", "f", Sampling(), [], Raw(b"null"))


@pytest.mark.parametrize("raw", [True, False])
async def test_worker_of_an_older_release_gets_json(make_process: MakeProcess, raw: bool) -> None:
    preprocessor, worker = (
        await make_process("preprocessor", f"raw-{raw}-p"),
        await make_process("worker", f"raw-{raw}"),
    )
    placement = Placement(preprocessor, "m", Router(), KvView(preprocessor, "m"))
    worker.serve(Reported(ModelCard("other", raw_prompts=not raw), ModelCard("m", raw_prompts=raw)))
    worker.heartbeats.send()
    await eventually(lambda: preprocessor.registry.get("worker", worker.id) is not None)
    data = placement.encode(REQUEST, worker.id)
    assert decode_generate(data) == REQUEST
    if raw:
        assert data.endswith(REQUEST.prompt)
    else:
        assert msgspec.json.decode(data, type=GenerateRequest) == REQUEST
    assert msgspec.json.decode(placement.encode(REQUEST, "gone"), type=GenerateRequest) == REQUEST
