"""The placement of turns among workers that report weights and adapters."""

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.control import ModelCard
from schemas.conversation import Conversation, Hints
from schemas.errors import NotFound
from schemas.requests import TurnRequest
from schemas.token_ids import pack_ids
from services.preprocessor.routing.kv_view import KvView
from services.preprocessor.routing.placement import Placement
from services.preprocessor.routing.router import Router
from tests.kit.processes import MakeProcess, Reported
from tests.kit.waiting import eventually


async def test_blocks_of_other_weights_do_not_count(make_process: MakeProcess) -> None:
    """A worker that has taken a prompt is expected to hold it, for its version only; any, for
    prompts that may reuse those of all versions."""
    preprocessor = await make_process("preprocessor", "weights-p")
    kv = KvView(preprocessor, "m")
    kv.follow()
    placement = Placement(preprocessor, "m", Router(1.0, 16384.0, waiting={}), kv)
    worker = await make_process("worker", "weights-w")
    parser = await make_process("parser", "weights-s")
    parser.serve(Reported(ModelCard("m")))
    parser.heartbeats.send()
    await eventually(lambda: bool(preprocessor.registry.able("parser", "m")))
    prompt = pack_ids(range(64))

    async def at(version: int) -> None:
        card = ModelCard("m", block_tokens=16, features=["salt"], weights_version=version)
        worker.serve(Reported(card))
        worker.heartbeats.send()

        def arrived() -> bool:
            heartbeat = preprocessor.registry.get("worker", worker.id)
            return heartbeat is not None and heartbeat.models == [card]

        await eventually(arrived)

    def held(any_weights: bool) -> int | None:
        conversation = Conversation("m", [], hints=Hints(any_weights=any_weights))
        return placement.cached_tokens(worker.id, prompt, conversation)

    def take(any_weights: bool) -> None:
        conversation = Conversation("m", [], hints=Hints(any_weights=any_weights))
        request = TurnRequest("t", "f", conversation)
        turn: Any = SimpleNamespace(request=request, block_key_ids=prompt)
        with placement.assign(turn, worker.id) as assignment:
            assignment.accepted = True

    await at(1)
    take(any_weights=False)
    assert (held(False), held(True)) == (64, 0)
    await at(2)
    assert (held(False), held(True)) == (0, 0)
    take(any_weights=True)
    assert (held(False), held(True)) == (0, 64)
    await at(3)
    assert (held(False), held(True)) == (0, 64)


async def test_turn_with_an_adapter_goes_to_a_worker_that_has_it(make_process: MakeProcess) -> None:
    preprocessor = await make_process("preprocessor", "adapters-p")
    placement = Placement(
        preprocessor, "m", Router(1.0, 16384.0, waiting={}), KvView(preprocessor, "m")
    )
    for name, adapters in (("sql", ["sql"]), ("docs", ["docs"]), ("none", [])):
        worker = await make_process("worker", f"adapters-{name}")
        worker.serve(Reported(ModelCard("m", adapters=adapters)))
        worker.heartbeats.send()
    await eventually(lambda: len(preprocessor.registry.able("worker", "m")) == 3)

    def ranked(adapter: str) -> list[str]:
        conversation = Conversation("m", [], adapter=adapter)
        turn: Any = SimpleNamespace(request=TurnRequest("t", "f", conversation))
        return placement.rank_workers(turn, {})

    for adapter in ("sql", "docs"):
        (chosen,) = ranked(adapter)
        assert chosen.startswith(f"adapters-{adapter}")
    with pytest.raises(NotFound):
        ranked("other")
