"""Choosing tokens per request, against transformers' own warpers and against plain statistics."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.engines import torch, transformers, with_torch

pytestmark = with_torch
GREEDY = -1
"""`pick` of a greedy row."""
VOCAB = 300


def run(scores: Any, rows: Sequence[dict[str, Any]], at: Any = None, *, eager: bool = True) -> Any:
    """One step for requests with these arguments, at these positions, through the library's own
    list."""
    from transformers.generation.continuous_batching import cb_logits_processors

    from services.worker.engines.transformers.sampler import install

    chain = cb_logits_processors.ContinuousBatchingLogitsProcessorList(
        transformers.LogitsProcessorList()
    )
    install(chain, eager=eager)
    requests = list[Any]()
    for row, position in zip(rows, at or [10] * len(rows), strict=True):
        chain.check_kwargs(row)
        state = SimpleNamespace(logit_processor_kwargs=row, position_offset=position)
        requests.append(SimpleNamespace(state=state, has_new_token=True))
    storage = torch.zeros((chain.tensors_required, len(rows) + 3), dtype=torch.int32)
    chain.fill_defaults(storage)
    arguments = chain.prepare_tensor_args(requests, storage)
    return chain(torch.zeros(len(rows), dtype=torch.int64), scores, arguments)


def by_warpers(scores: Any, row: dict[str, Any]) -> Any:
    warpers = transformers.LogitsProcessorList()
    for name, warper in (
        ("temperature", transformers.TemperatureLogitsWarper),
        ("top_k", transformers.TopKLogitsWarper),
        ("top_p", transformers.TopPLogitsWarper),
        ("min_p", transformers.MinPLogitsWarper),
    ):
        if name in row:
            warpers.append(warper(row[name]))
    return warpers(torch.zeros((len(scores), 1), dtype=torch.int64), scores)


ROWS: list[dict[str, Any]] = [
    {},
    {"top_k": 10_000},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
]


@pytest.mark.parametrize("eager", [True, False])
def test_each_row_is_filtered_as_transformers_would_and_a_greedy_one_is_argmax(eager: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn((len(ROWS) + 1, VOCAB), generator=generator) * 4
    scores[-1] = 0.0
    scores[-1, [17, 40, 200]] = 9.0  # equals
    found = run(scores.clone(), [*ROWS, {"pick": GREEDY}], eager=eager)
    for row, mine, plain in zip(ROWS, found, scores, strict=False):
        theirs = by_warpers(plain.unsqueeze(0).clone(), row)[0]
        assert torch.equal(mine.isneginf(), theirs.isneginf()), row
        assert torch.allclose(mine, theirs), row
    assert found[-1].isfinite().nonzero().tolist() == [[17]]


def test_seeded_tokens_are_drawn_from_the_softmax() -> None:
    """Over seeds, and over positions of one seed."""
    weights = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    numbers = range(5_000)
    scores = weights.log().repeat(len(numbers), 1)
    by_seed = run(scores.clone(), [{"pick": seed + 1} for seed in numbers])
    by_position = run(scores.clone(), [{"pick": 77}] * len(numbers), list(numbers))
    for found in (by_seed, by_position):
        counts = found.isfinite().sum(dim=0)
        expected = weights * counts.sum()
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert chi_square < 18.5  # 99.9 % of four degrees of freedom
