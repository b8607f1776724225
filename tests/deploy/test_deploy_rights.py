"""Every feature on a server with deploy/nats/nats.conf, which records what each user does: no right
is missing, and none is unused."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.conversation import Sampling
from schemas.errors import MEDIA_MISSING
from schemas.events import PromptImage
from schemas.requests import GenerateReply, GenerateRequest
from services.images.store import ImageStore
from services.runtime.config.stores import ImageStoreConfig
from tests.deploy.deployed import CONF, DeployedNats, rights, stop, unused, users
from tests.kit.messages_client import Answer, Client, body, call, say
from tests.kit.stack import MAIN, MODEL, Stack
from tests.kit.waiting import LIMIT_S, eventually, until

pytestmark = pytest.mark.slow

WINDOW = 16_384
COUNTS = {"frontend": 2, "preprocessor": 2, "worker": 2, "parser": 2}
LONG = say("Thinking.</think>" + "word " * 600)


@pytest.fixture
def deployed(
    nats_binary: str, demo_dir: Path, tmp_path: Path
) -> Iterator[tuple[DeployedNats, Stack, dict[str, dict[str, Any]]]]:
    nats = DeployedNats(nats_binary, tmp_path, trace=True)
    stack = Stack(nats, demo_dir, tmp_path, beat_interval_s=0.25, dead_after_s=1.5)
    worker = {"token_delay_ms": 5, "max_model_len": WINDOW}
    options = users(nats, frontend={"response_store": "shared"}, worker=worker)
    try:
        yield nats, stack.start_all(COUNTS, **options), options
    finally:
        stop(nats, stack)


async def test_no_right_is_missing_and_none_is_unused(
    deployed: tuple[DeployedNats, Stack, dict[str, dict[str, Any]]], quiet_log: FilteringBoundLogger
) -> None:
    nats, stack, options = deployed
    clients = [Client(child.url) for child in stack.of("frontend")]
    for client in clients:
        await client.ready()
    try:
        with observing(nats):
            second = await apis(clients[0])
            await text(clients[0])
            await engines(clients[0])
            await stored(*clients)
            await rollouts(*clients)
            await cancelled(clients[0], stack)
            await unreadable(nats, stack, clients[0], quiet_log)
            await images(nats, clients[0], quiet_log)
            await losses(stack, clients[0], options, second)
            await suspended(stack, clients[1])
            await lost_frames(nats, clients[0])
        doctor(nats)
        change_buckets(nats)
    finally:
        for client in clients:
            await client.http.close()
    assert nats.violations() == []
    for child in stack.children:
        assert "permissions violation" not in child.text(), child.name
    done = nats.done()
    for user, granted in rights(CONF.read_text()).items():
        for what, verb in (("publish", "PUB"), ("subscribe", "SUB")):
            used = [s for u, v, s in done if (u, v) == (user, verb)]
            assert unused(granted.get(what, []), used) == [], (user, what)


async def ask(client: Client, path: str, **request: Any) -> dict[str, Any]:
    """The answer, which has to be one; a stream is read to its end."""
    asked = {"model": MODEL, **request}
    async with client.http.post(f"{client.url}{path}", json=asked) as response:
        assert response.status == 200, await response.text()
        if request.get("stream"):
            assert b"data:" in await response.read()
            return {}
        found: dict[str, Any] = await response.json()
        return found


async def apis(client: Client) -> dict[str, Any]:
    """Uses the APIs, streamed and not, with tool calls and stop strings. Returns the request of a
    second turn after one in the ledger."""
    for stream in (True, False):
        first = say(f"Thinking.</think>Text.{call('ls')}", "Done.</think>All STOP done.")
        user = {"role": "user", "content": first}
        await ask(client, "/v1/chat/completions", messages=[user], stream=stream)
        await ask(client, "/v1/completions", prompt=first, max_tokens=5, stream=stream)
        await ask(client, "/v1/responses", input=first, stream=stream)
    answer = await client.stream(body(first))
    assert answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": answer.blocks[-1]["id"], "content": "a b"}
    history = [user, answer.message, {"role": "user", "content": [result]}]
    second = {**body(""), "messages": history, "stop_sequences": ["STOP"]}
    assert (await client.stream(second)).stop_sequence == "STOP"
    return second


async def text(client: Client) -> None:
    """Counting and tokenizing; a prompt that does not fit is refused by the preprocessor, and at
    once: the frontend acknowledges that."""
    messages = [{"role": "user", "content": "hello"}]
    assert (await ask(client, "/v1/messages/count_tokens", messages=messages))["input_tokens"]
    tokens = (await ask(client, "/v1/tokenize", prompt="hello", add_special_tokens=False))["tokens"]
    assert (await ask(client, "/v1/detokenize", tokens=tokens))["prompt"] == "hello"
    status, reply = await client.post("/v1/messages", body("word " * 2 * WINDOW, stream=False))
    assert status == 400, reply


async def engines(client: Client) -> None:
    """An operator pauses all workers and resumes them."""
    for action in ("pause", "resume"):
        workers = (await ask(client, f"/engines/{action}"))["workers"]
        assert [worker["paused"] for worker in workers] == [action == "pause"] * COUNTS["worker"]


async def rollouts(one: Client, other: Client) -> None:
    """An agent's turn in one frontend, and its sample in the other."""
    rollout = await ask(one, "/rollouts")
    path = f"/rollouts/{rollout['id']}"
    await ask(
        one, f"{path}/v1/chat/completions", messages=[{"role": "user", "content": say("Hi.")}]
    )
    await ask(other, f"{path}/finish")
    async with other.http.get(f"{other.url}{path}/samples") as response:
        assert len((await response.text()).splitlines()) == 2


async def stored(one: Client, other: Client) -> None:
    """Responses of one frontend on the other: read, continued, in the background, cancelled,
    deleted."""
    quick, long = say("Hm.</think>Hello."), say("Hm.</think>[[delay 20]][[fill 400]]")
    made = await ask(one, "/v1/responses", input=quick)
    await ask(other, "/v1/responses", input=quick, previous_response_id=made["id"])
    running = await ask(one, "/v1/responses", input=long, background=True)

    async def status(wanted: str) -> bool:
        _, response = await other.get(f"/v1/responses/{running['id']}")
        return bool(response["status"] == wanted)

    await until(lambda: status("in_progress"))
    await ask(other, f"/v1/responses/{running['id']}/cancel")
    await until(lambda: status("cancelled"))
    async with other.http.delete(f"{other.url}/v1/responses/{made['id']}") as deleted:
        assert deleted.status == 200

    async def gone() -> bool:
        return (await one.get(f"/v1/responses/{made['id']}"))[0] == 404

    await until(gone)


async def cancelled(client: Client, stack: Stack) -> None:
    """A client hangs up."""
    async with client.http.post(f"{client.url}/v1/messages", json=body(LONG)) as hung_up:
        await hung_up.content.readany()
    await eventually(lambda: any('"hangup"' in worker.text() for worker in stack.of("worker")))


async def unreadable(
    nats: DeployedNats, stack: Stack, client: Client, log: FilteringBoundLogger
) -> None:
    """A turn that no parser can read: its worker reports to the frontend."""
    _, health = await client.get("/health")
    worker, parser = (health["stages"][stage][0]["id"] for stage in ("worker", "parser"))
    evt = f"{subjects.PREFIX}.evt."
    frontend = next(
        s for user, verb, s in nats.done() if verb == "SUB" and s.startswith(evt)
    ).removeprefix(evt)
    broken = msgspec.Raw(b"7")
    request = GenerateRequest(
        "unread", 1, MODEL, b"\0" * 4, parser, frontend, Sampling(max_tokens=2), [], broken
    )
    bus = await nats.bus("preprocessor", log)
    reply = await bus.request(
        subjects.generate(MODEL, worker), msgspec.json.encode(request), LIMIT_S
    )
    assert msgspec.json.decode(reply, type=GenerateReply).error is None
    await eventually(lambda: ("worker", "PUB", subjects.events(frontend)) in nats.done())
    await bus.close()


async def images(nats: DeployedNats, client: Client, log: FilteringBoundLogger) -> None:
    """A frontend stores an image, a worker reads it, and so does a frontend, for samples."""
    _, health = await client.get("/health")
    worker = health["stages"]["worker"][0]["id"]
    frontend = await nats.bus("frontend", log)
    preprocessor = await nats.bus("preprocessor", log)
    store = ImageStore(frontend, ImageStoreConfig(), log)
    await store.put("0" * 40, b"data")
    assert await store.get("0" * 40) == b"data"
    for image, code in (("0" * 40, None), ("1" * 40, MEDIA_MISSING)):
        place = [PromptImage(image, 0, 1)]
        sampling, context = Sampling(max_tokens=0), msgspec.Raw(b"null")
        request = GenerateRequest(
            "seen", 1, MODEL, b"\0" * 4, "", "", sampling, [], context, images=place
        )
        reply = await preprocessor.request(
            subjects.generate(MODEL, worker), msgspec.json.encode(request), LIMIT_S
        )
        error = msgspec.json.decode(reply, type=GenerateReply).error
        assert (error and error.code) == code
    await frontend.close()
    await preprocessor.close()


async def begun(client: Client, count: int) -> list[asyncio.Task[Answer]]:
    """Turns whose text arrives."""
    starting = (client.begin(body(LONG), "content_block_delta") for _ in range(count))
    return await asyncio.gather(*starting)


async def losses(
    stack: Stack, client: Client, options: dict[str, dict[str, Any]], second: dict[str, Any]
) -> None:
    """One of each stage dies under streams; what starts in its place reads the ledger's bucket and
    the KV blocks."""
    for stage in ("parser", "worker", "preprocessor"):
        turns = await begun(client, 4)
        stack.of(stage)[0].kill()
        assert [(await turn).stop_reason for turn in turns] == ["end_turn"] * 4
        stack.start(stage, **options[stage])
        await asyncio.to_thread(stack.wait_ready, COUNTS)
    stack.of("preprocessor")[0].kill()  # the other one never had the first turn in memory
    assert (await client.stream(second)).stop_sequence == "STOP"
    stack.start("preprocessor", **options["preprocessor"])
    await asyncio.to_thread(stack.wait_ready, COUNTS)


async def suspended(stack: Stack, client: Client) -> None:
    """A frontend is taken for dead and comes back."""
    frontend = stack.of("frontend")[1]

    def is_lost(stage: str) -> bool:
        lines = "".join(child.text() for child in stack.of(stage)).splitlines()
        return any("process.peer_lost" in line and f'"{frontend.name}-' in line for line in lines)

    frontend.pause()
    await eventually(lambda: all(map(is_lost, COUNTS)))
    frontend.resume()
    await client.ready()
    await client.stream(body(say("Hm.</think>Hi.")))


async def lost_frames(nats: DeployedNats, client: Client) -> None:
    """The server is killed and started again under streams until frames were lost, and replayed, on
    both hops."""

    def replayed() -> bool:
        sent = [subject for _, verb, subject in nats.done() if verb == "PUB"]
        return not unused(["tw.v2.replay.worker.*", "tw.v2.replay.parser.*"], sent)

    for _ in range(20):
        turns = await begun(client, 8)
        nats.kill()
        nats.start()
        assert [(await turn).stop_reason for turn in turns] == ["end_turn"] * 8
        if replayed():
            return
    pytest.fail("no frame was lost")


def command(nats: DeployedNats, user: str, *argv: str) -> list[str]:
    login = ["--nats-user", user, "--nats-password-file", nats.password_file(user)]
    return [*MAIN, *argv, "--nats-url", nats.url, *login]


@contextmanager
def observing(nats: DeployedNats) -> Iterator[None]:
    """`turnwire tap` and `turnwire trajectories` run along, and get something."""
    argv = (("tap", "--json"), ("trajectories",))
    outputs = [Path(f"{nats.log}.{name}") for name, *_ in argv]
    running = [
        subprocess.Popen(
            command(nats, "tap", *one), stdout=output.open("wb"), stderr=subprocess.DEVNULL
        )
        for one, output in zip(argv, outputs, strict=True)
    ]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.wait(LIMIT_S)
    lines = [[json.loads(line) for line in output.read_text().splitlines()] for output in outputs]
    assert "tok" in {line["subject"].split(".")[2] for line in lines[0]}
    assert lines[1]


def doctor(nats: DeployedNats) -> None:
    found = subprocess.run(
        command(nats, "tap", "doctor"), capture_output=True, text=True, timeout=LIMIT_S
    )
    for stage in ("frontend", "preprocessor", "worker", "parser"):
        assert any(line.split()[:2] == ["ok", stage] for line in found.stdout.splitlines()), (
            found.stdout
        )


def change_buckets(nats: DeployedNats) -> None:
    """The set-up step again, with other limits."""
    more = ("--ledger-store-mb", "65", "--response-store-bytes", "200MiB")
    made = subprocess.run(
        [*command(nats, "setup", "buckets"), *more], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert made.returncode == 0, made.stderr
