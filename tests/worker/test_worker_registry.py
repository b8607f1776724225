"""Engines by entry point: the built-in ones, and one that a package of another project brings."""

import re
from pathlib import Path

import pytest

from schemas.errors import Invalid
from services.runtime.config.loader import ConfigError
from services.runtime.config.stages import WorkerConfig
from services.worker.engines.registry import BUILT_IN, GROUP, installed_engines, open_engine
from tests.kit.installing import install
from tests.worker.conformance import Bench, Conformance

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

PAGE = PYPROJECT.parent / "docs" / "extending.md"


async def test_an_installed_package_brings_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = re.findall(r"```python\n(.*class CountingEngine.*?)```", PAGE.read_text(), re.S)
    source = shown.rpartition("```python\n")[2]
    classes = {"counting": "CountingEngine", "script": "CountingEngine", "broken": "Missing"}
    entries = [f"{name} = counting_engine:{cls}" for name, cls in classes.items()]
    install(tmp_path, "counting_engine", source, GROUP, *entries)
    monkeypatch.syspath_prepend(tmp_path)
    assert set(installed_engines()) >= {"counting", "script", "transformers", "trtllm", "vllm"}
    assert installed_engines()["script"].value == BUILT_IN["script"], "no package replaces it"
    with pytest.raises(Exception, match=r"the broken engine cannot be imported: .*Missing"):
        open_engine("broken", WorkerConfig(model="none"))
    engine = open_engine("counting", WorkerConfig(model="none", slots=4))
    info = await engine.start()
    bench = Bench(engine, info, list(range(10, 20)), kill=lambda: None)
    await Conformance().test_one_terminal_delta_at_the_end(bench)
    await engine.stop(1.0)


def test_class_that_does_not_derive_from_engine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "class Unrelated:\n    def __init__(self, config):\n        pass\n"
    install(tmp_path, "unrelated_engine", source, GROUP, "unrelated = unrelated_engine:Unrelated")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Invalid, match=r"must derive from services\.worker\.engine\.Engine"):
        open_engine("unrelated", WorkerConfig(model="none"))


def test_an_unknown_name_is_one_clear_error_with_all_names() -> None:
    with pytest.raises(ConfigError) as caught:
        open_engine("nonesuch", WorkerConfig(model="none"))
    (problem,) = caught.value.problems
    told, _, names = problem.partition("; installed are: ")
    assert told == "engine: there is no engine 'nonesuch'"
    assert names.split(", ") == sorted({*names.split(", "), *BUILT_IN})
