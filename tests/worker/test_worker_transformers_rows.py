"""Penalties, biases, log probabilities and grammars of the transformers engine."""

import asyncio
import gc
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import OutputFormat
from schemas.errors import Invalid
from schemas.events import FinishReason
from services.runtime.config import WorkerConfig
from services.worker.engine import EngineDelta
from services.worker.engines.transformers.engine import TransformersEngine
from tests.kit import engines
from tests.kit.engines import ids_of, request, torch, transformers

pytestmark = engines.with_torch
PROMPT = engines.PROMPT[:60]


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[TransformersEngine]:
    # also on a machine with a GPU
    without_graphs = {"use_cuda_graph": False, "use_async_batching": False}
    arguments = {"threads": 1, "batching": without_graphs}
    config = WorkerConfig(model=str(tiny_model), slots=8, kv_tokens=8192, engine_args=arguments)
    made = TransformersEngine(config)
    await made.start()
    yield made
    await made.stop(5.0)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return transformers.Qwen3ForCausalLM.from_pretrained(tiny_model)


async def run(engine: TransformersEngine, turn: str, **fields: Any) -> list[EngineDelta]:
    asked = {"ids": PROMPT, "max_tokens": 24, "temperature": 0.0, **fields}
    return await engines.run(engine, request(turn, **asked))


def told(deltas: list[EngineDelta]) -> list[list[tuple[int, float]]]:
    return [pairs for delta in deltas for pairs in delta.logprobs or []]


def own_logprobs(model: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        scores = model(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    return scores.float().log_softmax(dim=-1)


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 1.0, "top_p": 0.9}, {"presence_penalty": 2.0}],
)
async def test_log_probabilities_are_the_models_own(
    engine: TransformersEngine, model: Any, sampling: dict[str, Any]
) -> None:
    """They are those of the distribution before temperature, filters and penalties."""
    deltas = await run(engine, "a", logprobs=4, **sampling)
    ids, pairs = ids_of(deltas), told(deltas)
    assert [pair[0][0] for pair in pairs] == ids
    own = own_logprobs(model, ids)
    for row, (token, found) in zip(own, zip(ids, pairs, strict=True), strict=True):
        values = row.topk(5)
        others = [i for i in values.indices.tolist() if i != token][:4]
        assert [i for i, _ in found[1:]] == others
        assert [v for _, v in found] == pytest.approx(
            [float(row[i]) for i in (token, *others)], abs=1e-3
        )


async def test_neighbours_in_a_batch_are_not_touched(engine: TransformersEngine) -> None:
    alone = ids_of(await run(engine, "alone"))
    shaped: list[dict[str, Any]] = [
        {"logit_bias": {alone[0]: -100.0}},
        {"repetition_penalty": 1.5},
        {"logprobs": 2},
        {"temperature": 1.0, "logprobs": 0},
        {},
    ]
    together = await asyncio.gather(
        *(run(engine, f"t{n}", **options) for n, options in enumerate(shaped))
    )
    assert ids_of(together[4]) == ids_of(together[2]) == alone
    assert ids_of(together[0]) != alone


async def test_a_bias_bans_or_forces_a_token(engine: TransformersEngine) -> None:
    free = ids_of(await run(engine, "free"))
    banned = ids_of(await run(engine, "banned", logit_bias={free[0]: -100.0}))
    assert free[0] not in banned
    assert set(ids_of(await run(engine, "forced", logit_bias={99: 100.0}))) == {99}


@pytest.mark.parametrize("penalty", [1.2, 0.7])
async def test_repetition_is_penalised_as_by_generate(
    engine: TransformersEngine, model: Any, penalty: float
) -> None:
    expected = model.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=24,
        do_sample=False,
        repetition_penalty=penalty,
        eos_token_id=None,
    )[0, len(PROMPT) :].tolist()
    assert ids_of(await run(engine, "r", repetition_penalty=penalty)) == expected


@pytest.mark.parametrize("resumed", [0, 10])
async def test_presence_and_frequency_count_the_output_alone(
    engine: TransformersEngine, model: Any, resumed: int
) -> None:
    """Output of an earlier attempt is output."""
    presence, frequency, said = 0.4, 0.3, list[int]()
    for _ in range(24):
        with torch.no_grad():
            scores = model(torch.tensor([PROMPT + said])).logits[0, -1].float()
        for token in set(said):
            scores[token] -= presence + frequency * said.count(token)
        said.append(int(scores.argmax()))
    found = await run(
        engine,
        "p",
        ids=PROMPT + said[:resumed],
        resumed=resumed,
        max_tokens=24 - resumed,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    assert said[:resumed] + ids_of(found) == said


async def test_nothing_is_kept_of_requests_that_are_over(engine: TransformersEngine) -> None:
    from services.worker.engines.transformers.rows import HostRow

    for n in range(5):
        await run(engine, f"t{n}", logprobs=1, max_tokens=3)
    gc.collect()
    rows = [kept for kept in gc.get_objects() if type(kept) is HostRow]
    assert len(rows) <= 1, "but for that of the last step"


@pytest.fixture(scope="module")
def speaking(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's tokenizer with random weights."""
    pytest.importorskip("llguidance")
    path = tmp_path_factory.mktemp("speaking") / "model"
    shutil.copytree(demo_dir, path)
    size = len(transformers.AutoTokenizer.from_pretrained(path))
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.slow
class TestGuided:
    """With llguidance and a tokenizer."""

    @pytest.fixture
    async def talker(self, speaking: Path) -> AsyncIterator[TransformersEngine]:
        own = {"threads": 1}
        made = TransformersEngine(
            WorkerConfig(model=str(speaking), slots=4, kv_tokens=8192, engine_args=own)
        )
        info = await made.start()
        assert "guided" in info.features
        yield made
        await made.stop(5.0)

    SCHEMA = {
        "type": "object",
        "properties": {
            "mood": {"enum": ["calm", "rough"]},
            "waves": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["mood", "waves"],
        "additionalProperties": False,
    }

    async def test_random_weights_write_what_fits_the_schema(
        self, talker: TransformersEngine, speaking: Path
    ) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(speaking)
        stop = tokenizer.eos_token_id
        form = OutputFormat("json_schema", self.SCHEMA)
        options: dict[str, Any] = {
            "stop_ids": [stop],
            "max_tokens": 200,
            "temperature": 1.0,
            "guided": form,
        }
        plain, *guided = await asyncio.gather(
            run(talker, "plain", max_tokens=20),
            *(run(talker, f"g{n}", seed=n, logprobs=1, **options) for n in range(3)),
        )
        for deltas in guided:
            value = json.loads(tokenizer.decode(ids_of(deltas)))
            assert value["mood"] in ("calm", "rough")
            assert 0 <= value["waves"] <= 9
            assert (deltas[-1].finish, deltas[-1].stop_id) == (FinishReason.STOP, stop)
        assert len(ids_of(plain)) == 20, "a neighbour without a form goes on as it likes"
        with pytest.raises(Invalid, match="schema"):
            await run(talker, "bad", guided=OutputFormat("json_schema", {"type": "nonesuch"}))

    async def test_a_whole_turn_keeps_to_a_grammar(
        self, talker: TransformersEngine, speaking: Path
    ) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(speaking)
        stop, marker = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<tool_call>")
        grammar = f'start: /[a-z ]{{0,9}}/ <[{marker}]> "(" ("yes" | "no") ")" <[{stop}]>?'
        own: dict[str, Any] = {"max_tokens": 100, "temperature": 1.0}
        options: dict[str, Any] = {"stop_ids": [stop], "grammar": grammar, **own}
        for seed in range(3):
            deltas = await run(talker, f"turn{seed}", seed=seed, **options)
            text = tokenizer.decode(ids_of(deltas))
            assert re.fullmatch(r"[a-z ]{0,9}<tool_call>\((yes|no)\)", text)
            assert deltas[-1].stop_id == stop
        begun = [marker, *tokenizer.encode("(n", add_special_tokens=False)]
        rest = await run(talker, "resumed", ids=PROMPT + begun, resumed=len(begun), **options)
        assert tokenizer.decode(begun + ids_of(rest)) == "<tool_call>(no)"
        with pytest.raises(Invalid, match="tools cannot be kept to"):
            await run(talker, "bad", grammar='start: %json {"type": "nonesuch"}')
