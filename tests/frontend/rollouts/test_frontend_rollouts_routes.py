"""Who may use a rollout, and what its id is a key for."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import ClientWebSocketResponse

from services.rollouts.rollout import ROLLOUT_PREFIX
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.rollouts.token_turns import Agent, TokenGateway, rollout
from tests.kit.bodies import MODEL, chat, messages, responses
from tests.kit.frontend import Reply, Served, key_line, serving
from tests.kit.raw_http import answer_to, get
from tests.kit.rollouts import MemoryRollouts
from tests.kit.waiting import eventually

FOREIGN = "ro_" + "0" * 32


class Keys:
    """The file of keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write()

    def write(self, alpha: str = "", *, has_alpha: bool = True) -> None:
        """`alpha`: options of this key."""
        lines = [key_line("beta", "beta"), key_line("ro-key", "ro_key_of_a_person")]
        if has_alpha:
            lines.append(key_line("alpha", "alpha", alpha))
        self.path.write_text("".join(lines))

    @property
    def config(self) -> FrontendConfig:
        return FrontendConfig(api_keys_file=str(self.path))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


@pytest.fixture
async def served(keys: Keys) -> AsyncIterator[Served]:
    async with serving(TokenGateway(), keys.config) as served:
        yield served


def reload(served: Served) -> None:
    served.callers.reload(SimpleNamespace(warning=lambda *_, **__: None))


async def ask_with(served: Served, key: str, **fields: object) -> Reply:
    return await served.post("/v1/messages", messages(**fields), headers={"x-api-key": key})


async def test_rollouts_need_a_key(served: Served) -> None:
    assert (await served.post("/rollouts", {})).status == 401
    agent = await rollout(served, "alpha")
    path = f"/rollouts/{agent.id}"
    for method, under in OPERATIONS:
        assert (await served.send(method, path + under, json={})).status == 401, under


OPERATIONS = (
    ("GET", ""),
    ("GET", "/samples"),
    ("GET", "/images/abc"),
    ("POST", "/finish"),
    ("POST", "/abort"),
    ("POST", "/restart"),
    ("PUT", "/reward"),
    ("DELETE", ""),
)


async def test_other_tenants_rollout_is_not_found(served: Served) -> None:
    agent = await rollout(served, "alpha")
    unknown = Agent(served, {"id": FOREIGN}, **{"x-api-key": "alpha"})
    other = Agent(served, agent.document, **{"x-api-key": "beta"})
    for method, under in OPERATIONS:
        for one in (other, unknown):
            reply = await one.call(method, under, {} if method == "PUT" else None)
            assert reply.status == 404, (method, under)
            assert one.id not in reply.text
    assert (await agent.state())["status"] == "open"


async def test_id_is_the_key_of_its_agent_only(served: Served, keys: Keys) -> None:
    keys.write("operator=yes")
    reload(served)
    agent = await rollout(served, "alpha")
    other = await rollout(served, "alpha")
    for id in (agent.id, other.id):
        bearer = {"authorization": f"Bearer {agent.id}"}
        for method, under in OPERATIONS:
            for headers in ({"x-api-key": agent.id}, bearer):
                path = f"/rollouts/{id}{under}"
                reply = await served.send(method, path, json={}, headers=headers)
                assert reply.status == 403, (method, under)
    for path in ("/rollouts", "/engines/pause", "/engines/resume", "/engines/weights"):
        reply = await served.post(path, {"model": MODEL}, headers={"x-api-key": agent.id})
        assert reply.status == 403, path
        below = await served.post(f"/rollouts/{agent.id}{path}", {"model": MODEL})
        assert below.status in (401, 403, 404), path
    for path in (f"/v1/../rollouts/{other.id}", f"/v1/../../{other.id}/samples", "/v1/../rollouts"):
        answer = await answer_to(served.port, get(f"/rollouts/{agent.id}{path}"))
        assert answer.status in (401, 403, 404), path
    assert (await agent.state())["status"] == (await other.state())["status"] == "open"


async def test_id_is_a_key_in_both_headers_and_in_the_address(served: Served) -> None:
    agent = await rollout(served, "alpha")
    for headers in ({"x-api-key": agent.id}, {"authorization": f"Bearer {agent.id}"}):
        for path, body in (
            ("/v1/messages", messages()),
            ("/v1/chat/completions", chat()),
            ("/v1/responses", responses(store=False)),
        ):
            assert (await served.post(path, body, headers=headers)).status == 200, path
    wrong = {"x-api-key": "wrong"}
    path = f"/rollouts/{agent.id}/v1/messages"
    assert (await served.post(path, messages(), headers=wrong)).status == 200, "none is needed"
    assert (await agent.state())["turns"] == 7
    for key in (FOREIGN, agent.id[:-1], agent.id + "0", agent.id.upper()):
        assert (await ask_with(served, key)).status in (401, 404), key
    assert (await served.post(f"/rollouts/{FOREIGN}/v1/messages", messages())).status == 404
    assert (await ask_with(served, "ro_key_of_a_person")).status == 200, "any key may begin so"


async def test_turns_are_of_the_rollout_in_the_address(served: Served) -> None:
    agent, other = await rollout(served, "alpha"), await rollout(served, "beta")
    path = f"/rollouts/{agent.id}/v1/messages"
    assert (await served.post(path, messages(), headers={"x-api-key": other.id})).status == 200
    assert ((await agent.state())["turns"], (await other.state())["turns"]) == (1, 0)


async def test_removed_or_expired_key_ends_the_access(served: Served, keys: Keys) -> None:
    agent = await rollout(served, "alpha")
    assert (await agent.ask()).status == 200
    keys.write("expires=2020-01-01")
    reload(served)
    for reply in (await agent.ask(), await ask_with(served, agent.id)):
        assert (reply.status, reply.json["error"]["type"]) == (401, "authentication_error")
    keys.write()
    reload(served)
    assert (await agent.ask()).status == 200
    keys.write(has_alpha=False)
    reload(served)
    assert (await agent.ask()).status == 401
    assert (await ask_with(served, agent.id)).status == 401


async def test_key_limits_models_and_priority(served: Served, keys: Keys) -> None:
    agent = await rollout(served, "alpha")
    keys.write("models=other priority=-7")
    reload(served)
    refused = await agent.ask()
    assert (refused.status, refused.json["error"]["type"]) == (403, "permission_error")
    denied = await served.post("/rollouts", {"model": MODEL}, headers={"x-api-key": "alpha"})
    assert denied.status == 403
    keys.write("priority=-7")
    reload(served)
    assert (await agent.ask(nvext={"agent_hints": {"priority": 5}})).status == 200
    assert served.gateway.turns[-1].conversation.hints.priority == -7
    assert served.gateway.turns[-1].conversation.client.tenant == "alpha"


async def test_rates_of_the_key_hold_for_all_its_rollouts(served: Served, keys: Keys) -> None:
    agents = [await rollout(served, "alpha") for _ in range(3)]
    keys.write("rpm=2")
    reload(served)
    replies = [await agent.ask() for agent in agents]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert (await ask_with(served, "alpha")).status == 429, "they are the key's"
    assert (await ask_with(served, "beta")).status == 200


async def test_making_rollouts_has_the_rate_of_counting(served: Served, keys: Keys) -> None:
    keys.write("rpm=2")
    reload(served)
    headers = {"x-api-key": "alpha"}
    replies = [await served.post("/rollouts", {}, headers=headers) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]


async def test_tokens_of_rollouts_are_the_keys(served: Served, keys: Keys) -> None:
    keys.write("tpm=5")
    reload(served)
    agent = await rollout(served, "alpha")
    assert [(await agent.ask()).status for _ in range(2)] == [200, 429]


async def test_concurrency_of_the_key_holds(served: Served, keys: Keys) -> None:
    keys.write("concurrency=1")
    reload(served)
    gateway = served.gateway
    assert isinstance(gateway, TokenGateway)
    one, other = await rollout(served, "alpha"), await rollout(served, "alpha")
    gateway.pause = asyncio.Event()
    asking = asyncio.create_task(one.ask())
    await eventually(lambda: len(gateway.turns) == 1)
    assert (await other.ask()).status == 429
    gateway.pause.set()
    assert (await asking).status == 200
    assert (await other.ask()).status == 200


async def test_socket_stays_the_rollouts_as_long_as_its_key(served: Served, keys: Keys) -> None:
    agent = await rollout(served, "alpha")

    async def respond(socket: ClientWebSocketResponse) -> str:
        await socket.send_json({"type": "response.create", "model": MODEL, "input": "Hi."})
        kind = ""
        while kind not in ("response.completed", "error"):
            kind = (await socket.receive_json(timeout=10))["type"]
        return kind

    async with served.http.ws_connect(f"/rollouts/{agent.id}/v1/responses") as socket:
        assert [await respond(socket) for _ in range(2)] == ["response.completed"] * 2
        assert (await agent.state())["turns"] == 2
        keys.write(has_alpha=False)
        reload(served)
        assert await respond(socket) == "error"


async def test_background_is_the_rollouts(served: Served) -> None:
    agent = await rollout(served, "alpha")
    headers = {"x-api-key": agent.id}
    await served.post("/v1/responses", responses(background=True), headers=headers)
    while (await agent.state())["turns"] == 0:
        await asyncio.sleep(0.01)


async def test_log_has_no_whole_id(served: Served) -> None:
    agent = await rollout(served, "alpha")
    await agent.ask()
    await ask_with(served, agent.id)
    await agent.state()
    await agent.call("PUT", "/reward", {"turns": {"x": 1.0}})
    await agent.samples()
    await served.get(f"/rollouts/{agent.id}/v1/nothing")
    await served.get(f"/rollouts/{agent.id}/nothing")
    await agent.call("DELETE")
    await agent.call("GET")
    assert served.lines
    text = repr(served.lines)
    assert agent.id not in text
    assert agent.id.removeprefix("ro_") not in text
    assert agent.id[:9] + "…" in text
    assert "/v1/messages" in text


async def test_no_notice_has_the_id() -> None:
    """Everyone on the bus may hear notices, and the id is a key."""
    process = MemoryRollouts()
    async with serving(TokenGateway(), rollouts=process) as server:
        agent = await rollout(server)
        await agent.ask()
        await eventually(lambda: process.notices != [])
        for method, path in (("POST", "/restart"), ("POST", "/abort"), ("DELETE", "")):
            assert (await agent.call(method, path)).status == 200
        sent = msgspec.json.encode(process.notices).decode()
    assert "aborted" in sent
    assert agent.id not in sent
    assert agent.id.removeprefix(ROLLOUT_PREFIX) not in sent
