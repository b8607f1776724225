"""Every vector, whole and cut in every way, with every property of `fuzz`."""

from typing import Any

from fuzz.properties import check
from tests.kit.every import for_each
from tests.kit.parser_cases import case_name, problems, vectors, words


@for_each(vectors(), parts=6, name=case_name)
def test_every_vector_passes_in_every_chunking(case: dict[str, Any]) -> None:
    assert problems(case, check(case)) is None
    assert "".join(words(case["raw"])) == case["raw"]
