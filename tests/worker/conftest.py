"""What the tests of workers share: models to run, and a worker with an engine that waits."""

import gc
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.engines import torch, transformers
from tests.kit.processes import MakeProcess
from tests.kit.worker import HeldTrial


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of two layers with random weights, vocabulary 512, end tokens 5 and 7."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        eos_token_id=[5, 7],
        tie_word_embeddings=False,
    )
    transformers.Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(path)
    # transformers collects garbage at the end of each engine: imported modules are none
    gc.freeze()
    return path


@pytest.fixture(scope="session")
def vision(vision_dir: Path) -> Any:
    """Prompts for the vision model."""
    from tests.worker.vision import VisionPrompts

    return VisionPrompts(vision_dir, vision_dir.name)


@pytest.fixture
def fake_trtllm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package `tensorrt_llm` of the version `request.param`. Nothing that the release ignores
    may be sent to it."""
    from tests.worker.fake_tensorrt_llm import Package

    # Stopping an engine waits for the call that reads from it.
    monkeypatch.setattr("services.worker.engines.trtllm.readings.POLL_TIMEOUT_S", 0.02)
    package = Package(request.param)
    for name, module in package.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(tensor=list))
    yield package.root
    if (last := package.root.LLM.last) is not None:
        last.runtime.shutdown()
        assert not last.runtime.breaches


@pytest.fixture
def managers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The library's managers of the transformers engines that a test starts."""
    from services.worker.engines.transformers.loader import LoadedModel, load_model

    made: list[Any] = []

    def loading(*args: Any) -> LoadedModel:
        loaded = load_model(*args)
        made.append(loaded.manager)
        return loaded

    monkeypatch.setattr("services.worker.engines.transformers.engine.load_model", loading)
    return made


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package `vllm`; returns its `AsyncLLM`."""
    from tests.worker import fake_vllm

    for name, module in fake_vllm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake_vllm.AsyncLLM


@pytest.fixture
async def idle(
    make_process: MakeProcess, request: pytest.FixtureRequest
) -> AsyncIterator[HeldTrial]:
    """A worker that has not started."""
    name = request.node.name
    shard = await make_process("parser", f"{name}-p")
    trial = HeldTrial(await make_process("worker", f"{name}-w"), shard)
    yield trial
    await trial.engine.stop(1.0)


@pytest.fixture
async def trial(idle: HeldTrial) -> HeldTrial:
    """One that has, with a prefix cache."""
    await idle.start_held()
    return idle
