"""`turnwire doctor` describes correctly which turns a template keeps."""

from pathlib import Path

import pytest

from bench.ledger.models import build
from bench.ledger.published import published
from services.cli.doctor.turn_keeping import try_turns


@pytest.mark.parametrize(
    ("name", "loop", "user"),
    [
        ("qwen3", "kept", "changed"),
        pytest.param("qwen3_8", "kept", "kept", marks=pytest.mark.slow),
        # with the variable that keeps history
        pytest.param("nemotron_3_nano", "kept", "kept", marks=pytest.mark.slow),
    ],
)
def test_published_templates_keep_the_expected_turns(
    name: str, loop: str, user: str, tmp_path: Path
) -> None:
    if name not in published():
        pytest.skip("trl is not installed")
    fates = try_turns(build(published()[name].read_text(), tmp_path))
    assert (fates.loop, fates.user) == (loop, user)
