"""Claude Code over `turnwire up --engine vllm`, vLLM itself on a CPU (`make test-vllm`): a random
model, forced to write what the scripted agent would answer."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.clients.bus_turns import BusTurns
from tests.clients.claude import ClaudeCode, work
from tests.clients.conftest import MODEL, ROOM, WINDOW
from tests.clients.machine import Machine
from tests.clients.session import Session
from tests.clients.wire import Recorder
from tests.kit.models import build_random_model
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.pipeline.forced_vllm import LIMIT_S, descendants, gone, start_up

pytestmark = [
    pytest.mark.timeout(3 * LIMIT_S),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"
    ),
]


@pytest.fixture(scope="module")
def vllm_stack(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("vllm")
    model = build_random_model(directory / "model", window=WINDOW)
    names = {"accept_any_model": True, "default_model": MODEL}
    running = start_up(nats, model, directory, MODEL, WINDOW, **names, **ROOM)
    yield running
    running.stop()


@pytest.fixture
async def session(vllm_stack: Stack) -> AsyncIterator[Session]:
    async with Recorder(vllm_stack.url) as wire, BusTurns(vllm_stack.nats.url) as bus:
        yield Session(wire, bus, vllm_stack)


async def test_its_loops_are_closed_and_exact(
    machine: Machine, session: Session, vllm_stack: Stack
) -> None:
    kinds = await work(await ClaudeCode(machine).connect(session.wire.url))
    assert kinds.count("tool_use") == 5
    session.check_served()
    await session.check_counts(session.main)
    assert await session.prefix_breaks(session.main) == []
    (up,) = vllm_stack.children
    children = descendants(up.process.pid)
    up.terminate()
    assert await asyncio.to_thread(up.wait, LIMIT_S) == 0
    await gone(children)
