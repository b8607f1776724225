"""A client of a rollout gets, byte for byte, what it gets without one."""

import re
from typing import Any

import pytest

from tests.frontend.rollouts.token_turns import AGENT, HELLO, TokenGateway, rollout
from tests.kit.bodies import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api, Json, user
from tests.kit.frontend import Reply, Served

LOGPROBS: dict[str, Json] = {
    "messages": {"logprobs": True},
    "chat": {"logprobs": True, "top_logprobs": 2},
    "completions": {"logprobs": 1},
    "responses": {"include": ["message.output_text.logprobs"]},
}
IDS: Json = {"return_token_ids": True}
_OWN = re.compile(
    rb"\b(?:msg|resp|chatcmpl|cmpl|rs|fc|toolu|call|req|chatcmpl-tool)[_-][0-9A-Za-z]{20,}"
    rb'|"(?:created|created_at|completed_at)":[0-9.]+'
)
"""What differs in every two answers."""


def comparable(reply: Reply) -> tuple[int, dict[str, str], list[bytes]]:
    """The status, the names and values of headers, and the bytes, without what always differs."""
    headers = {
        name.lower(): value
        for name, value in reply.headers.items()
        if name.lower() not in ("date", "request-id", "x-request-id", "content-length")
        and not name.lower().endswith("-ms")
    }
    # A later id may be an earlier one again.
    return reply.status, headers, _OWN.sub(b"#", reply.body).split(b"\n")


async def check(served: Served, api: Api, body: Json) -> bytes:
    """Compares both answers; returns one."""
    agent = await rollout(served)
    plain = await served.post(api.path, body)
    in_rollout = await served.post(f"/rollouts/{agent.id}{api.path}", body)
    with_key = await served.post(api.path, body, headers={"x-api-key": agent.id})
    assert plain.status == 200, plain.text
    assert comparable(in_rollout) == comparable(plain)
    assert comparable(with_key) == comparable(plain)
    (first, *_) = await agent.samples()
    assert sum(first["loss_mask"]) > 0
    assert None not in [
        logprob for logprob, bit in zip(first["logprobs"], first["loss_mask"], strict=True) if bit
    ]
    return plain.body


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize("stream", [False, True])
async def test_answers_are_equal(served: Served, api: Api, stream: bool) -> None:
    gateway = served.gateway
    assert isinstance(gateway, TokenGateway)
    gateway.answers = [AGENT if api is not COMPLETIONS else HELLO]
    logprobs = LOGPROBS[api.name]
    tools: Json = {} if api is COMPLETIONS else {"tools": [api.tool()]}
    expected = {**LOGPROBS, "messages": LOGPROBS["messages"] | IDS}
    for asked in ({}, logprobs, IDS, logprobs | IDS):
        body = api.body(stream=stream, **tools, **asked)
        answer = await check(served, api, body)
        assert (b"token_ids" in answer) is ("return_token_ids" in asked), asked
        has_values = re.search(rb"-[01]\.[0-9]*5", answer) is not None
        assert has_values is (asked == asked | expected[api.name]), asked


async def test_choices_are_turns(served: Served) -> None:
    for api in (CHAT, COMPLETIONS):
        await check(served, api, api.body(n=2))


@pytest.mark.parametrize("api", [MESSAGES, CHAT, RESPONSES], ids=lambda api: api.name)
async def test_errors_are_equal(served: Served, api: Api) -> None:
    agent = await rollout(served)
    bodies: list[Any] = [
        {"model": api.body()["model"]},
        api.body(temperature="hot"),
    ]
    for body in bodies:
        plain = await served.post(api.path, body)
        assert plain.status >= 400
        in_rollout = await served.post(f"/rollouts/{agent.id}{api.path}", body)
        assert comparable(in_rollout) == comparable(plain)


async def test_counting_and_models_are_equal(served: Served) -> None:
    agent = await rollout(served)
    counted = [
        await served.post(f"{prefix}/v1/messages/count_tokens", MESSAGES.body(user("Hi.")))
        for prefix in ("", f"/rollouts/{agent.id}")
    ]
    assert comparable(counted[0]) == comparable(counted[1])
    assert counted[0].json == {"input_tokens": 4321}
    for path in (
        "/v1/models",
        "/v1/models?limit=1",
        "/codex/models.json",
        "/v1/models/claude-alias",
    ):
        plain, own = await served.get(path), await served.get(f"/rollouts/{agent.id}{path}")
        assert plain.status == 200, path
        assert comparable(own) == comparable(plain), path
        tag = {"if-none-match": own.headers["etag"]}
        assert (await served.get(f"/rollouts/{agent.id}{path}", headers=tag)).status == 304, path
    assert await agent.samples() == [], "counting is no turn"
