"""Weights of the transformers engine that change while it decodes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import Invalid, Unavailable
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta, EngineDied
from services.worker.engines.transformers.engine import TransformersEngine
from tests.kit import engines
from tests.kit.engines import (
    PROMPT,
    begun,
    ids_of,
    request,
    rest,
    run,
    torch,
    transformers,
    update,
    versions_of,
)
from tests.kit.listening import Listener, listen
from tests.kit.waiting import LIMIT_S, eventually

pytestmark = engines.with_torch
WHOLE = "model.safetensors"


def load(path: Path) -> Any:
    return transformers.Qwen3ForCausalLM.from_pretrained(path).eval()


@pytest.fixture(scope="module")
def versions(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders with the weights of versions 0, 1 and 2."""
    folders = [tiny_model]
    for version in (1, 2):
        model = load(folders[-1])
        torch.manual_seed(version)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.05)
        folders.append(tmp_path_factory.mktemp("weights") / str(version))
        model.save_pretrained(folders[-1])
    return folders


@asynccontextmanager
async def started(model: Path, **changes: Any) -> AsyncIterator[TransformersEngine]:
    args = {"threads": 1, **changes.pop("engine_args", {})}
    engine = TransformersEngine(
        WorkerConfig(model=str(model), slots=8, kv_tokens=8192, engine_args=args, **changes)
    )
    await engine.start()
    yield engine
    await engine.stop(5.0)


def logprobs(model: Any, ids: Sequence[int], prompt_tokens: int) -> Any:
    """The log probabilities that a model computes for the tokens after a prompt."""
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0, prompt_tokens - 1 : -1]
    chosen = torch.tensor(ids[prompt_tokens:])[:, None]
    return logits.log_softmax(dim=-1).gather(1, chosen)[:, 0]


@pytest.mark.parametrize("mode", ["sampling", "greedy"])
async def test_each_token_is_that_of_the_weights_of_its_span(
    versions: list[Path], mode: str
) -> None:
    """Also in turns that go on with other weights, and with prompts that were in the cache."""
    models = [load(path) for path in versions]
    prompts = [PROMPT, PROMPT, PROMPT[:50], PROMPT + PROMPT]
    options: dict[str, Any] = {"max_tokens": 250, "logprobs": 0, "temperature": 1.0}
    options["temperature"] = float(mode == "sampling")
    async with started(versions[0], engine_args={"mode": mode}) as engine:
        turns = [list[EngineDelta]() for _ in prompts]
        streams = [
            await begun_into(deltas, engine, request(str(n), prompt, **options))
            for n, (deltas, prompt) in enumerate(zip(turns, prompts, strict=True))
        ]
        for version in (1, 2):
            await decoded(turns, 20 * version)
            await update(engine, versions[version], version)
            assert engine.weights_version == version
        await asyncio.gather(*streams)
        late = await run(engine, request("late", PROMPT, **options))

    for prompt, deltas in zip([*prompts, PROMPT], [*turns, late], strict=True):
        ids = ids_of(deltas)
        spans = versions_of(deltas)
        assert spans == sorted(spans)
        assert set(spans) == ({2} if deltas is late else {0, 1, 2})
        assert len([delta for delta in deltas if delta.weights is not None]) == len(
            set(spans) - {0}
        )
        own = [logprobs(model, [*prompt, *ids], len(prompt)) for model in models]
        expected = [float(own[version][at]) for at, version in enumerate(spans)]
        recorded = [row[0][1] for delta in deltas for row in delta.logprobs or []]
        assert recorded == pytest.approx(expected, abs=1e-3)


async def decoded(turns: list[list[EngineDelta]], tokens: int) -> None:
    """Returns when each turn has as many tokens."""
    await eventually(lambda: min(len(ids_of(deltas)) for deltas in turns) >= tokens)


async def begun_into(
    deltas: list[EngineDelta], engine: TransformersEngine, asked: Any
) -> "asyncio.Task[None]":
    """Runs a turn in a task; it has had its first delta."""

    async def collect() -> None:
        async for delta in listen(engine, asked):
            deltas.append(delta)

    stream = asyncio.create_task(collect())
    await eventually(lambda: bool(deltas))
    return stream


async def test_prompt_finds_no_blocks_of_other_weights(versions: list[Path]) -> None:
    async with started(versions[0]) as engine:
        first = await run(engine, request("a", temperature=0.0))
        again = await run(engine, request("b", temperature=0.0))
        # a turn that is open has blocks that are not yet complete
        held = await begun(engine, request("held", max_tokens=200, temperature=0.0))
        await update(engine, versions[1], 7)
        await rest(held)
        other = await run(engine, request("c", [*PROMPT[:-1], 9], temperature=0.0))
        await update(engine, versions[0], 8)
        back = await run(engine, request("d", temperature=0.0))
    assert (engines.cached_of(first), engines.cached_of(again)) == (0, 96)
    assert engines.cached_of(other) == 96, "that of the held turn, computed again"
    assert engines.cached_of(back) == 0
    assert versions_of(other) == [7] * 16
    assert versions_of(back) == [8] * 16
    assert ids_of(back) == ids_of(first) == ids_of(again)


async def test_source_that_does_not_fit_changes_nothing(
    versions: list[Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    own = load_file(versions[1] / WHOLE)
    some = "model.layers.0.mlp.up_proj.weight"
    sources = {
        saved(tmp_path / "less", {name: own[name] for name in own if name != some}): "missing",
        saved(tmp_path / "more", {**own, "more": torch.zeros(1)}): "unexpected_keys .'more'",
        saved(tmp_path / "shape", {**own, some: torch.zeros(3)}): "mismatched_keys",
        saved(tmp_path / "cut", own): "is not safetensors",
        tmp_path / "pickled": "has no safetensors",
        tmp_path / "none": "has no safetensors",
    }
    (tmp_path / "cut" / WHOLE).write_bytes((versions[1] / WHOLE).read_bytes()[:9999])
    (tmp_path / "pickled").mkdir()
    torch.save(own, tmp_path / "pickled" / "pytorch_model.bin")
    async with started(versions[0]) as engine:
        before = await run(engine, request("a", temperature=0.0))
        for source, why in sources.items():
            with pytest.raises(Invalid, match=why):
                await update(engine, source, 1)
        after = await run(engine, request("b", temperature=0.0))
        assert engine.weights_version == 0
    assert ids_of(before) == ids_of(after)
    assert engines.cached_of(after) == 96


def saved(folder: Path, tensors: dict[str, Any]) -> Path:
    """Writes a checkpoint; returns its folder."""
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(tensors, folder / WHOLE)
    return folder


async def test_tied_weights_are_needed_once(tiny_model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    config = transformers.AutoConfig.from_pretrained(tiny_model, tie_word_embeddings=True)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WHOLE)
    assert "lm_head.weight" not in tensors
    embedding = "model.embed_tokens.weight"
    both = {**tensors, "lm_head.weight": tensors[embedding].clone()}
    async with started(tmp_path) as engine:
        await update(engine, tmp_path, 1)
        await update(engine, saved(tmp_path / "both", both), 2)
        del tensors[embedding]
        with pytest.raises(Invalid, match=embedding):
            await update(engine, saved(tmp_path / "none", tensors), 3)


def test_experts_that_the_library_fuses_are_read(tmp_path: Path) -> None:
    """Their names in a checkpoint are not those of the model."""
    from safetensors.torch import load_file

    from services.worker.engines.transformers.weights import copy_weights, read_weights

    sizes = {"vocab_size": 64, "hidden_size": 16, "moe_intermediate_size": 8, "head_dim": 8}
    config = transformers.Qwen3MoeConfig(
        **sizes, num_experts=4, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )
    model, other = (transformers.Qwen3MoeForCausalLM(config).bfloat16() for _ in range(2))
    other.save_pretrained(tmp_path)
    assert load_file(tmp_path / WHOLE).keys() - other.state_dict().keys()
    copy_weights(read_weights(str(tmp_path), model))
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


async def test_paused_engine_takes_turns_and_is_not_a_hang(versions: list[Path]) -> None:
    async with started(versions[0], watchdog_s=0.3) as engine:
        taken = list[EngineDelta]()
        stream = await begun_into(taken, engine, request("open", max_tokens=300))
        await engine.pause(abort=False)
        await engine.pause(abort=False)
        stopped_at = len(taken)
        waiting = asyncio.create_task(run(engine, request("waiting")))
        closed = Listener()
        engine.open(request("closed"), closed).close()
        # four times the watchdog's limit
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.2):
                await asyncio.shield(waiting)
        assert len(taken) == stopped_at
        await engine.update_weights(str(versions[1]), 4)
        assert len(taken) == stopped_at, "an update does not resume"
        await engine.resume()
        await engine.resume()
        async with asyncio.timeout(LIMIT_S):
            await stream
            assert versions_of(await waiting) == [4] * 16
        assert len(ids_of(taken)) == 300
        assert set(versions_of(taken)) == {0, 4}
        assert engine.healthy()
        assert not closed.deltas


async def test_pause_can_abort_open_turns(versions: list[Path]) -> None:
    async with started(versions[0]) as engine:
        streams = [await begun(engine, request(str(n), max_tokens=3000)) for n in range(3)]
        await engine.pause(abort=True)
        for stream in streams:
            with pytest.raises(Unavailable, match="paused"):
                await rest(stream)
        assert engine.load().running == 0
        await engine.update_weights(str(versions[1]), 1)
        await engine.resume()
        assert versions_of(await run(engine, request("0"))) == [1] * 16


async def test_engine_stops_while_it_is_paused(tiny_model: Path, managers: list[Any]) -> None:
    async with started(tiny_model) as engine:
        await engine.pause(abort=False)
        async with asyncio.timeout(LIMIT_S):
            await engine.stop(LIMIT_S)
    assert not managers[-1].is_running()


async def test_engine_with_half_of_the_new_weights_is_dead(
    versions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("services.worker.engines.transformers.weights.copy_weights", broken)
    async with started(versions[0]) as engine:
        stream = await begun(engine, request("open", max_tokens=3000))
        with pytest.raises(EngineDied, match=r"only in part those of .*: out of memory"):
            await update(engine, versions[1], 1)
        with pytest.raises(EngineDied):
            await rest(stream)
        assert not engine.healthy()


async def test_dead_thread_can_neither_pause_nor_get_weights(
    versions: list[Path], managers: list[Any]
) -> None:
    async with started(versions[0]) as engine:
        managers[-1].stop(hard_stop=True)
        with pytest.raises(EngineDied):
            await engine.pause(abort=False)
        with pytest.raises(EngineDied):
            await update(engine, versions[1], 1)
