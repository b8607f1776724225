"""Choosing tokens per request, against transformers' own warpers and against plain statistics."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.engines import torch, transformers, with_torch

pytestmark = with_torch
GREEDY = -1
"""`pick` of a greedy row."""
VOCAB = 300


def processors(*, eager: bool) -> Any:
    from transformers.generation.continuous_batching import cb_logits_processors

    from services.worker.engines.transformers.sampler import install

    chain = cb_logits_processors.ContinuousBatchingLogitsProcessorList(
        transformers.LogitsProcessorList()
    )
    install(chain, eager=eager)
    return chain


def run(chain: Any, scores: Any, rows: list[dict[str, Any]], at: int = 10) -> Any:
    """One step for requests with these arguments, through the library's own list."""
    requests = []
    for row in rows:
        chain.check_kwargs(row)
        state = SimpleNamespace(logit_processor_kwargs=row, position_offset=at)
        requests.append(SimpleNamespace(state=state, has_new_token=True))
    storage = torch.zeros((chain.tensors_required, len(rows) + 3), dtype=torch.int32)
    chain.fill_defaults(storage)
    arguments = chain.prepare_tensor_args(requests, storage)
    return chain(torch.zeros(len(rows), dtype=torch.int64), scores, arguments)


def by_warpers(scores: Any, row: dict[str, Any]) -> Any:
    warpers = transformers.LogitsProcessorList()
    if row.get("temperature", 1.0) != 1.0:
        warpers.append(transformers.TemperatureLogitsWarper(row["temperature"]))
    if row.get("top_k"):
        warpers.append(transformers.TopKLogitsWarper(row["top_k"]))
    if row.get("top_p", 1.0) < 1.0:
        warpers.append(transformers.TopPLogitsWarper(row["top_p"]))
    if row.get("min_p"):
        warpers.append(transformers.MinPLogitsWarper(row["min_p"]))
    return warpers(torch.zeros((len(scores), 1), dtype=torch.int64), scores)


ROWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"top_k": 20},
    {"temperature": 1.7, "top_k": 5},
    {"top_p": 0.8},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    {"min_p": 0.2},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"top_p": 1e-6},
    {"top_k": 10_000},
]


@pytest.mark.parametrize("eager", [True, False])
def test_each_row_is_filtered_as_transformers_would(eager: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn((len(ROWS), VOCAB), generator=generator) * 4
    found = run(processors(eager=eager), scores.clone(), ROWS)
    for row, mine, plain in zip(ROWS, found, scores, strict=True):
        theirs = by_warpers(plain.unsqueeze(0).clone(), row)[0]
        assert torch.equal(mine.isneginf(), theirs.isneginf()), row
        assert torch.allclose(mine, theirs), row


@pytest.mark.parametrize("eager", [True, False])
def test_a_greedy_row_is_argmax_also_among_equals(eager: bool) -> None:
    scores = torch.zeros((2, VOCAB))
    scores[0, [17, 40, 200]] = 9.0
    found = run(processors(eager=eager), scores, [{"pick": GREEDY}, {}])
    assert found[0].isfinite().nonzero().tolist() == [[17]]
    assert found[1].isfinite().all()


def picked(seed: int, scores: Any, at: int, others: int = 0) -> int:
    rows = [{"pick": seed}] + [{"temperature": 0.5}] * others
    found = run(processors(eager=True), scores.repeat(1 + others, 1), rows, at)
    (token,) = found[0].isfinite().nonzero().flatten().tolist()
    return int(token)


def test_a_seed_gives_the_same_token_in_any_company() -> None:
    scores = torch.zeros((1, VOCAB))
    alone = [picked(5, scores, at) for at in range(20)]
    assert alone == [picked(5, scores, at, others=3) for at in range(20)]
    assert alone != [picked(6, scores, at) for at in range(20)]
    assert len(set(alone)) > 10


def test_seeded_tokens_are_drawn_from_the_softmax() -> None:
    """Over seeds, and over positions of one seed."""
    weights = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    chain = processors(eager=True)
    rows = [{"pick": seed + 1} for seed in range(20_000)]
    by_seed = run(chain, weights.log().repeat(len(rows), 1), rows).isfinite().sum(dim=0)
    by_position = torch.zeros(5)
    for at in range(0, 20_000, 10):
        one = run(chain, weights.log().repeat(1, 1), [{"pick": 77}], at)
        by_position += one.isfinite().sum(dim=0)
    for counts in (by_seed, by_position):
        expected = weights * counts.sum()
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert chi_square < 18.5  # 99.9 % of four degrees of freedom


def test_noise_has_no_infinities() -> None:
    from services.worker.engines.transformers.sampler import _gumbel

    keys = torch.arange(1, 200, dtype=torch.int32).unsqueeze(-1)
    assert _gumbel(keys, 5_000).isfinite().all()
