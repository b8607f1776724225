"""Every vector, whole and cut in every way."""

from typing import Any

from schemas.events import FinishReason
from tests.kit.every import for_each
from tests.kit.parser_cases import case_name, every_way, opened, problems, vectors, words


@for_each(vectors(), parts=2, name=case_name)
def test_every_vector_passes_in_every_chunking(case: dict[str, Any]) -> None:
    blocks = every_way(lambda: opened(case), case["raw"], FinishReason(case["finish_reason"]))
    assert problems(case, blocks) is None
    assert "".join(words(case["raw"])) == case["raw"]
