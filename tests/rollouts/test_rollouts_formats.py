"""Samples as trl reads them, by trl's own trainer where it is installed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.rollouts.formats import TrlRow, trl_row
from services.rollouts.rollout import Rewards, Rollout
from services.rollouts.sample_lines import RolloutSample, sample_of_rollout
from services.rollouts.samples import Sampler
from tests.kit.byte_tokenizers import byte_level
from tests.rollouts.agent_run import AgentRun


def sample_with(turns: int, name: str = "ro_1", reward: float = 0.5) -> RolloutSample:
    run = AgentRun(with_ids=True)
    sampler = Sampler(one_run=True)
    for _ in range(turns):
        sampler.add(run.turn(run.sessions[0], asks=3))
    (sample,) = sampler.close()
    rollout = Rollout(name, 1.0, None, group="g")
    return sample_of_rollout(sample, rollout, Rewards(reward=reward), "/images/")


def test_trls_prompt_ends_where_the_first_output_begins() -> None:
    row = trl_row(sample_with(2))
    assert (len(row.prompt_ids), len(row.completion_ids)) == (3, 7)
    assert row.env_mask == [1, 1, 0, 0, 0, 1, 1]
    assert row.logprobs == [-0.5, None, 0.0, 0.0, 0.0, -0.5, None]
    assert (row.reward, row.rollout, row.group, row.sample) == (0.5, "ro_1", "g", "t0")


@pytest.mark.slow
def test_trls_trainer_learns_from_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    trl = pytest.importorskip("trl")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    rows = [trl_row(sample_with(1 + n, f"ro_{n}", n / 4)) for n in range(4)]
    lines = [msgspec.json.encode(row) for row in rows]
    batches: list[dict[str, Any]] = []
    rewards: list[list[float]] = []

    compute_loss = trl.GRPOTrainer._compute_loss

    def recorded_loss(trainer: Any, model: Any, inputs: dict[str, Any]) -> Any:
        batches.append(inputs)
        return compute_loss(trainer, model, inputs)

    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", recorded_loss)

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        decoded = [msgspec.json.decode(line) for line in lines]
        return {name: [row[name] for row in decoded] for name in decoded[0]}

    def reward_func(reward: list[float], **members: Any) -> list[float]:
        rewards.append(reward)
        return reward

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), pad_token="<|im_end|>"
    )
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    arguments = trl.GRPOConfig(
        str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=4,
        max_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = trl.GRPOTrainer(
        transformers.LlamaForCausalLM(config),
        reward_func,
        arguments,
        datasets.Dataset.from_list([{"prompt": "Do it."}]),
        processing_class=tokenizer,
        rollout_func=rollout_func,
    )
    trainer.train()
    (batch,) = batches
    assert rewards == [[row.reward for row in rows]]
    order = batch["advantages"].argsort().tolist()
    for row, at in zip(rows, order, strict=True):
        check_row(row, batch, at)


def check_row(row: TrlRow, batch: dict[str, Any], at: int) -> None:
    """Compares a row with what the trainer's loss gets of it, as row `at` of a batch."""
    is_prompt = batch["prompt_mask"][at] == 1
    assert batch["prompt_ids"][at][is_prompt].tolist() == row.prompt_ids
    is_completion = batch["completion_mask"][at] == 1
    assert batch["completion_ids"][at][is_completion].tolist() == row.completion_ids
    assert batch["tool_mask"][at][is_completion].tolist() == row.env_mask
