"""Tests that `turnwire doctor` describes correctly which turns a template keeps."""

from pathlib import Path

import pytest

from bench.ledger.models import build
from bench.ledger.published import published
from services.cli.doctor.turn_keeping import try_turns

EXPECTED = {
    "qwen3": ("kept", "changed"),
    "qwen3_8": ("kept", "kept"),
    "nemotron_3_nano": ("kept", "kept"),  # with the variable that keeps history
}
"""Fates of a call and of an answer, by template."""


@pytest.mark.parametrize("name", EXPECTED)
def test_published_templates_keep_the_expected_turns(name: str, tmp_path: Path) -> None:
    if name not in published():
        pytest.skip("trl is not installed")
    fates = try_turns(build(published()[name].read_text(), tmp_path))
    assert (fates.loop, fates.user) == EXPECTED[name]
