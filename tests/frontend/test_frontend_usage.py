"""`GET /v1/usage`: a key's own numbers, which the log and the metrics have, too."""

import asyncio
import json
from pathlib import Path
from typing import Any

from typing_extensions import override

from schemas.events import BlockStart, Delta
from schemas.notices import FrontendNotice, UsageReported, UsageRequested
from services.frontend.peers import Peers
from services.frontend.turns.key_usage import KeyUsage
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL, chat
from tests.kit.events import USAGE, Step, finish
from tests.kit.every import Cases
from tests.kit.frontend import KEY, FakeGateway, FakeTurn, Served, guarded, key_line, serving
from tests.kit.raw_http import connected, post
from tests.kit.rollouts import MemoryRollouts
from tests.kit.waiting import eventually


async def test_usage_is_the_sum_of_what_answers_report(tmp_path: Path) -> None:
    config = guarded(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text(keys.read_text() + key_line("beta", "beta") + key_line("alpha", "second"))
    async with serving(config=config) as served:
        answers = [
            await served.post("/v1/chat/completions", chat(), headers={"x-api-key": key})
            for key in ("alpha", "second", "beta")
        ]
        mine = (await served.get("/v1/usage", headers=KEY)).json
        theirs = (await served.get("/v1/usage", headers={"x-api-key": "beta"})).json
        refused = await served.get("/v1/usage")
    usages = [answer.json["usage"] for answer in answers]
    expected = {
        "turns": 2,
        "prompt_tokens": sum(usage["prompt_tokens"] for usage in usages[:2]),
        "cached_tokens": 2 * usages[0]["prompt_tokens_details"]["cached_tokens"],
        "output_tokens": sum(usage["completion_tokens"] for usage in usages[:2]),
        "reasoning_tokens": 2 * usages[0]["completion_tokens_details"]["reasoning_tokens"],
    }
    assert expected["prompt_tokens"] > 0
    assert mine["total"] == expected
    assert mine["models"] == {MODEL: expected}
    assert (mine["key"], mine["frontends"], mine["complete"]) == ("alpha", 1, True)
    assert (theirs["key"], theirs["total"]["turns"]) == ("beta", 1)
    assert refused.status == 401


PROMPT = 656
"""Tokens of each prompt of the fake gateway."""
ARRIVED = 18


async def give_up(served: Served, body: dict[str, Any]) -> None:
    """Hangs up when the turns of a request have brought `ARRIVED` tokens each."""
    request = post(json.dumps(body).encode(), path="/v1/chat/completions")
    choices = body.get("n", 1)
    turns: list[FakeTurn] = served.gateway.turns
    async with connected(served.port, request):
        await eventually(lambda: len(turns) == choices)
        await eventually(lambda: all(turn.player is not None for turn in turns))
        for turn in turns:
            turn.sink.push([BlockStart(0, "text"), Delta(0, 0, "so")], ARRIVED)
        await asyncio.sleep(0)
    await eventually(lambda: bool(served.lines))


async def test_answer_that_was_given_up_has_the_same_tokens_everywhere(cases: Cases) -> None:
    for stream in (True, False):
        for choices in (1, 2):
            with cases.case(stream=stream, choices=choices):
                steps: list[Step] = [asyncio.Event()]
                async with serving(FakeGateway(lambda steps=steps: steps)) as served:  # type: ignore[misc]
                    await give_up(served, chat(stream=stream, n=choices))
                    total = (await served.get("/v1/usage")).json["total"]
                    value = served.registry.get_sample_value
                    model = {"model": MODEL}
                    key = {"key": "", **model}
                    prompts = {
                        "usage": total["prompt_tokens"],
                        "log": served.lines[0]["prompt_tokens"],
                        "metric": value("turnwire_prompt_tokens_total", model),
                        "metric of the key": value("turnwire_key_prompt_tokens_total", key),
                    }
                    outputs = {
                        "usage": total["output_tokens"],
                        "log": served.lines[0].get("output_tokens"),
                        "metric": value("turnwire_generation_tokens_total", model),
                        "metric of the key": value("turnwire_key_generation_tokens_total", key),
                    }
                assert served.lines[0]["outcome"] == "hangup"
                assert prompts == dict.fromkeys(prompts, PROMPT)
                assert outputs == dict.fromkeys(outputs, ARRIVED * choices)
                assert "cached_tokens" not in served.lines[0]


async def test_prompt_of_two_choices_counts_once_everywhere() -> None:
    async with serving(FakeGateway(lambda: [[finish(0)]])) as served:
        answer = await served.post("/v1/chat/completions", chat(n=2))
        total = (await served.get("/v1/usage")).json["total"]
        value = served.registry.get_sample_value
        prompt = value("turnwire_prompt_tokens_total", {"model": MODEL})
        output = value("turnwire_generation_tokens_total", {"model": MODEL})
    assert answer.json["usage"]["prompt_tokens"] == total["prompt_tokens"] == prompt == PROMPT
    assert total["output_tokens"] == output == 2 * USAGE.output
    assert served.lines[0]["prompt_tokens"] == PROMPT


async def test_only_an_operator_reads_what_all_keys_used(tmp_path: Path) -> None:
    config = guarded(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text(
        keys.read_text() + key_line("beta", "beta") + key_line("boss", "boss", "operator=yes")
    )
    async with serving(config=config) as served:
        for key in ("alpha", "beta", "beta"):
            await served.post("/v1/chat/completions", chat(), headers={"x-api-key": key})
        refused = await served.get("/v1/usage?all", headers=KEY)
        report = (await served.get("/v1/usage?all", headers={"x-api-key": "boss"})).json
        own = (await served.get("/v1/usage", headers={"x-api-key": "boss"})).json
    assert refused.status == 403
    turns = {key: models[MODEL]["turns"] for key, models in report["keys"].items()}
    assert turns == {"alpha": 1, "beta": 2}
    assert (report["key"], report["total"]["turns"]) == (None, 3)
    assert report["models"][MODEL]["turns"] == 3
    assert (own["key"], own["total"]["turns"], "keys" in own) == ("boss", 0, False)


async def test_usage_without_keys_is_that_of_all_clients() -> None:
    async with serving() as served:
        assert (await served.get("/v1/usage")).json["models"] == {}
        await served.ask()
        report = (await served.get("/v1/usage")).json
    assert (report["key"], report["total"]["turns"]) == (None, 1)


async def test_refused_and_counted_requests_are_no_turns() -> None:
    async with serving() as served:
        assert (await served.ask(model="unknown")).status == 404
        await served.post("/v1/messages/count_tokens", chat())
        assert (await served.get("/v1/usage")).json["total"]["turns"] == 0


async def test_usage_counts_as_a_request_that_decodes_nothing(tmp_path: Path) -> None:
    config = guarded(tmp_path, "rpm=1")
    async with serving(config=config, headers=KEY) as served:
        statuses = [(await served.get("/v1/usage")).status for _ in range(2)]
        assert statuses == [200, 429]
        assert (await served.ask()).status == 200


class NewerPeer(Peers):
    """Another frontend, of a release that counts more."""

    def __init__(self) -> None:
        self.usage: KeyUsage | None = None

    @override
    def living(self) -> list[str]:
        return ["frontend-2"]

    @override
    def publish(self, notice: FrontendNotice) -> None:
        assert self.usage is not None
        if isinstance(notice, UsageRequested):
            counts = {MODEL: {"turns": 2, "images": 1}}
            self.usage.apply(UsageReported(notice.id, "frontend-2", 0.0, counts))


async def test_unknown_counts_of_a_newer_frontend_are_left_out() -> None:
    peer = NewerPeer()
    async with serving(peers=peer) as served:
        peer.usage = served.app.usage
        report = (await served.get("/v1/usage")).json
    assert (report["frontends"], report["complete"]) == (2, True)
    assert report["total"]["turns"] == report["models"][MODEL]["turns"] == 2
    assert "images" not in report["total"]


async def test_rollouts_agent_gets_no_usage(tmp_path: Path) -> None:
    store = MemoryRollouts()
    async with serving(FakeGateway(), FrontendConfig(), rollouts=store) as served:
        id = (await served.post("/rollouts", {"model": MODEL})).json["id"]
        reply = await served.get("/v1/usage", headers={"x-api-key": id})
        assert reply.status == 403
        labels = {"reason": "rollout"}
        count = served.registry.get_sample_value("turnwire_forbidden_requests_total", labels)
        assert count == 1
