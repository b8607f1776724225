"""Every vector, in every chunking."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import FinishReason
from services.families import families
from tests.kit.examples import examples
from tests.kit.parser_cases import (
    CHUNKINGS,
    VECTORS,
    failures,
    fold,
    opened,
    problems,
    run,
    vectors,
    words,
)

FAMILIES = sorted({*families(), *(file.stem for file in VECTORS.glob("*.jsonl"))})
"""All families, and names of parsers of other servers that have vectors."""


@pytest.mark.parametrize("chunking", CHUNKINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_vector_passes(family: str, chunking: str) -> None:
    failed = [problem for _, problem in failures(vectors(family), chunking)]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_blocks_do_not_depend_on_the_cuts(family: str) -> None:
    for case in vectors(family):
        reason = FinishReason(case["finish_reason"])
        whole = fold(run(opened(case), [case["raw"]], reason))
        for chunking in CHUNKINGS.values():
            assert fold(run(opened(case), chunking(case["raw"]), reason)) == whole, case["case"]


@settings(max_examples=examples(150))
@given(st.sampled_from(vectors()), st.randoms(use_true_random=False))
def test_blocks_do_not_depend_on_random_cuts(case: dict[str, Any], chance: random.Random) -> None:
    if case["family"] not in FAMILIES:
        return
    pieces: list[str] = []
    at = 0
    while at < len(case["raw"]):
        size = chance.choice((1, 1, 2, 3, 5, 8, 40))
        pieces.append(case["raw"][at : at + size])
        at += size
    assert (
        problems(case, fold(run(opened(case), pieces, FinishReason(case["finish_reason"])))) is None
    )


def test_the_word_splitter_loses_nothing() -> None:
    for case in vectors():
        assert "".join(words(case["raw"])) == case["raw"]
