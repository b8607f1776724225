"""Fixtures of the tests with a real model (`make test-model`): SmolLM2-135M, served by every engine
that is installed."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.waiting import ENGINE_LIMIT_S
from tests.model.smollm2 import cached_model

MODEL = "smollm2"
WINDOW = 8192
BLOCK = 32
REQUIRED = {"transformers": "torch", "vllm": "vllm", "llamacpp": "turnwire_llamacpp"}
"""Engine → the package that it needs."""
ENGINE_ARGS = {
    "vllm": {
        "block_size": BLOCK,
        "enforce_eager": True,
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
    }
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder, before the marks are selected."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(2 * ENGINE_LIMIT_S))


@pytest.fixture(scope="session")
def folder() -> Path:
    """The model's folder."""
    if (found := cached_model()) is None:
        pytest.skip("the model is not here: make test-model")
    return found


@pytest.fixture(scope="module", params=REQUIRED)
def serving(
    request: pytest.FixtureRequest,
    nats_binary: str,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """`turnwire up` with an engine, by a template that has tools."""
    engine = request.param
    if importlib.util.find_spec(REQUIRED[engine]) is None:
        pytest.skip(f"{REQUIRED[engine]} is not installed: make test-model")
    nats = NatsServer(nats_binary, str(tmp_path_factory.mktemp("nats")))
    nats.start()
    stack = Stack(nats, folder, tmp_path_factory.mktemp(engine))
    stack.names.add(MODEL)
    stack.start_up(
        engine=engine,
        served_model_name=MODEL,
        chat_template=folder / "tools.jinja",
        dtype="float32",
        slots=4,
        kv_tokens=4 * WINDOW,
        accept_any_model=True,
        default_model=MODEL,
        engine_args=json.dumps(ENGINE_ARGS.get(engine, {})),
        watchdog_s=ENGINE_LIMIT_S,
    )
    try:
        stack.wait_ready(timeout_s=ENGINE_LIMIT_S)
        yield stack
    finally:
        stack.stop()
        nats.kill()
