"""What `turnwire doctor` says of a template's turns agrees with what is known of it."""

from pathlib import Path

import pytest

from bench.ledger.models import build
from bench.ledger.published import published
from services.preprocessor.turn_keeping import try_turns

OWN = Path(__file__).parent / "templates"
KNOWN = {
    "qwen3": ("kept", "changed"),
    "qwen3_8": ("kept", "kept"),
    "nemotron_3_nano": ("kept", "kept"),  # with the variable that keeps history
    "glm4moe": ("kept", "changed"),
    "gptoss": ("kept", "changed"),
    "llama3_1": ("kept", "kept"),
    "deepseekv3": ("kept", "changed"),  # reads no reasoning: in its own tags
}
"""What becomes of turns by these templates."""


@pytest.mark.parametrize("name", KNOWN)
def test_published(name: str, tmp_path: Path) -> None:
    if name not in published():
        pytest.skip("trl is not installed")
    keeps = try_turns(build(published()[name].read_text(), tmp_path))
    assert (keeps.loop, keeps.user) == KNOWN[name]


@pytest.mark.parametrize("name", ["clears_thinking", "no_generation_prompt"])
def test_our_own(name: str, tmp_path: Path) -> None:
    keeps = try_turns(build((OWN / f"{name}.jinja").read_text(), tmp_path))
    assert (keeps.loop, keeps.user) == ("kept", "kept")
