"""Penalties, biases, log probabilities and grammars of the transformers engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bench.random_model import build_random_model
from schemas.conversation import OutputFormat
from schemas.errors import Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta
from services.worker.engines.transformers.engine import TransformersEngine
from tests.kit import engines
from tests.kit.engines import ids_of, request, torch, transformers

pytestmark = [engines.with_torch, pytest.mark.asyncio(loop_scope="module")]
PROMPT = engines.PROMPT[:60]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
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


def scores_of(model: Any, ids: list[int]) -> Any:
    """The model's own scores of the output so far and of the next token."""
    with torch.no_grad():
        return model(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 :].float()


async def test_log_probabilities_are_the_models_own(engine: TransformersEngine, model: Any) -> None:
    """They are those of the distribution before temperature, filters and penalties."""
    for sampling in ({}, {"temperature": 1.0, "top_p": 0.9}, {"presence_penalty": 2.0}):
        deltas = await run(engine, "a", logprobs=4, **sampling)
        ids = ids_of(deltas)
        pairs = [row for delta in deltas for row in delta.logprobs or []]
        own = scores_of(model, ids)[:-1].log_softmax(dim=-1)
        for row, token, found in zip(own, ids, pairs, strict=True):
            others = [i for i in row.topk(5).indices.tolist() if i != token][:4]
            assert [i for i, _ in found] == [token, *others]
            expected = [float(row[i]) for i in (token, *others)]
            assert [value for _, value in found] == pytest.approx(expected, abs=1e-3)


async def test_bias_bans_or_forces_a_token_and_neighbours_in_a_batch_are_not_touched(
    engine: TransformersEngine,
) -> None:
    alone = ids_of(await run(engine, "alone"))
    shaped: list[dict[str, Any]] = [
        {"logit_bias": {alone[0]: -100.0}},
        {"logit_bias": {99: 100.0}},
        {"repetition_penalty": 1.5},
        {"logprobs": 2},
        {"temperature": 1.0, "logprobs": 0},
        {},
    ]
    together = await asyncio.gather(
        *(run(engine, f"t{n}", **options) for n, options in enumerate(shaped))
    )
    assert alone[0] not in ids_of(together[0])
    assert set(ids_of(together[1])) == {99}
    assert ids_of(together[5]) == ids_of(together[3]) == alone


async def test_penalties_are_those_of_generate_and_of_the_output_alone(
    engine: TransformersEngine, model: Any
) -> None:
    """Output of an earlier attempt is output."""
    greedy = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    made = model.generate(torch.tensor([PROMPT]), repetition_penalty=1.2, **greedy)
    generated = made[0, len(PROMPT) :].tolist()
    assert ids_of(await run(engine, "r", repetition_penalty=1.2)) == generated
    presence, frequency, said = 0.4, 0.3, list[int]()
    for _ in range(12):
        scores = scores_of(model, said)[-1]
        for token in set(said):
            scores[token] -= presence + frequency * said.count(token)
        said.append(int(scores.argmax()))
    own = {"presence_penalty": presence, "frequency_penalty": frequency}
    for resumed in (0, 6):
        options = {"ids": PROMPT + said[:resumed], "max_tokens": 12 - resumed, **own}
        found = await run(engine, "p", resumed=resumed, **options)
        assert said[:resumed] + ids_of(found) == said


@pytest.mark.slow
async def test_random_weights_write_what_fits_a_schema(tmp_path: Path) -> None:
    """With llguidance and a tokenizer."""
    pytest.importorskip("llguidance")
    speaking = build_random_model(tmp_path / "speaking", window=4096)
    talker = TransformersEngine(
        WorkerConfig(model=str(speaking), slots=4, kv_tokens=8192, engine_args={"threads": 1})
    )
    assert "guided" in (await talker.start()).features
    tokenizer = transformers.AutoTokenizer.from_pretrained(speaking)
    stop = tokenizer.eos_token_id
    own: dict[str, Any] = {"stop_ids": [stop], "max_tokens": 200, "temperature": 1.0}
    properties = {"waves": {"type": "integer", "minimum": 0, "maximum": 9}}
    schema = {"type": "object", "properties": properties, "required": ["waves"]}
    form = OutputFormat("json_schema", {**schema, "additionalProperties": False})
    plain, *guided = await asyncio.gather(
        run(talker, "plain", max_tokens=20),
        *(run(talker, f"g{n}", seed=n, logprobs=1, guided=form, **own) for n in range(3)),
    )
    for deltas in guided:
        assert 0 <= json.loads(tokenizer.decode(ids_of(deltas)))["waves"] <= 9
        assert (deltas[-1].finish, deltas[-1].stop_id) == (FinishReason.STOP, stop)
    assert len(ids_of(plain)) == 20, "a neighbour without a form goes on as it likes"
    with pytest.raises(Invalid, match="schema"):
        await run(talker, "bad", guided=OutputFormat("json_schema", {"type": "nonesuch"}))
    await talker.stop(5.0)
