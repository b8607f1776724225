"""Claude Code over `turnwire up --engine vllm`, vLLM itself on a CPU (`make test-vllm`): a random
model, forced to write what the scripted agent would answer."""

import asyncio
import importlib.util
from pathlib import Path

import pytest

from bench.random_model import build_random_model
from tests.clients.claude import ClaudeCode, work
from tests.clients.conftest import MODEL, ROOM, WINDOW, observed
from tests.clients.machine import Machine
from tests.kit.nats import NatsServer
from tests.pipeline.forced_vllm import LIMIT_S, descendants, gone, start_up

pytestmark = [
    pytest.mark.timeout(3 * LIMIT_S),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"
    ),
]


async def test_its_loops_are_closed_and_exact(
    machine: Machine, nats: NatsServer, tmp_path: Path
) -> None:
    model = build_random_model(tmp_path / "model", window=WINDOW)
    names = {"accept_any_model": True, "default_model": MODEL}
    stack = start_up(nats, model, tmp_path, MODEL, WINDOW, **names, **ROOM)
    try:
        async with observed(stack) as session:
            kinds = await work(await ClaudeCode(machine).connect(session.wire.url))
            assert kinds.count("tool_use") == 5
            await session.check(session.main, None)
        (up,) = stack.children
        children = descendants(up.process.pid)
        up.terminate()
        assert await asyncio.to_thread(up.wait, LIMIT_S) == 0
        await gone(children)
    finally:
        stack.stop()
