"""Every vector, whole, per token, per character and at random cuts."""

import random
from typing import Any

from schemas.events import FinishReason
from tests.kit.every import for_each
from tests.kit.parser_cases import (
    CHUNKINGS,
    case_name,
    cut_at_random,
    fold,
    opened,
    problems,
    run,
    vectors,
    words,
)


@for_each(vectors(), parts=2, name=case_name)
def test_every_vector_passes_in_every_chunking(case: dict[str, Any]) -> None:
    raw, reason = case["raw"], FinishReason(case["finish_reason"])
    whole = fold(run(opened(case), [raw], reason))
    assert problems(case, whole) is None
    assert "".join(words(raw)) == raw
    for cut in (*(cut(raw) for cut in CHUNKINGS.values()), cut_at_random(raw, random.Random(raw))):
        assert fold(run(opened(case), cut, reason)) == whole
