"""What `releases.toml` has, and what an installed package shows itself."""

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from services.worker.engines.trtllm.releases import installed_release, known_release
from tests.worker.fake_tensorrt_llm import VERSIONS

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "services/worker/engines/trtllm/releases.toml"


@pytest.mark.parametrize("fake_trtllm", VERSIONS, indirect=True)
def test_the_installed_package_is_what_the_table_has(fake_trtllm: Any) -> None:
    llm = importlib.import_module("tensorrt_llm")
    found = installed_release(llm, importlib.import_module("tensorrt_llm.llmapi"))
    assert found == known_release(fake_trtllm.__version__)


def test_releases_that_are_installed_are_tested() -> None:
    """Those of the image, of the extra, and of the last entry of the table."""
    bases = {
        found
        for name in ("deploy/trtllm.Dockerfile", "compose.yaml")
        for found in re.findall(r"tensorrt-llm/release:([\w.]+)", (ROOT / name).read_text())
    }
    (image,) = bases
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = Requirement(project["optional-dependencies"]["trtllm"][0])
    entries = re.findall(r'^since = "(.*)"', TABLE.read_text(), re.M)
    assert {image, entries[-1]} <= set(VERSIONS)
    assert f">={image}" in str(extra.specifier)
    assert extra.specifier.contains(VERSIONS[-1], prereleases=True)
    assert entries == sorted(entries, key=Version)


def test_a_version_that_cannot_be_read_counts_as_the_oldest_and_an_old_one_is_refused() -> None:
    assert known_release("").ignored == known_release("1.2.0").ignored
    with pytest.raises(ValueError, match="is too old"):
        known_release("1.1.0")
