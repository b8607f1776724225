"""Every vector, in every chunking."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import FinishReason
from tests.kit.every import for_each
from tests.kit.examples import examples
from tests.kit.parser_cases import (
    CHUNKINGS,
    case_name,
    fold,
    opened,
    problems,
    run,
    vectors,
    words,
)


@for_each(vectors(), parts=2, name=case_name)
def test_every_vector_passes_in_every_chunking(case: dict[str, Any]) -> None:
    reason = FinishReason(case["finish_reason"])
    whole = fold(run(opened(case), [case["raw"]], reason))
    assert problems(case, whole) is None
    for chunking in CHUNKINGS.values():
        assert fold(run(opened(case), chunking(case["raw"]), reason)) == whole


@settings(max_examples=examples(150))
@given(st.sampled_from(vectors()), st.randoms(use_true_random=False))
def test_blocks_do_not_depend_on_random_cuts(case: dict[str, Any], chance: random.Random) -> None:
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
