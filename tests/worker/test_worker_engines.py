"""Engines by entry point: the built-in ones, and one that a package of another project brings."""

import tomllib
from pathlib import Path

import pytest

from services.runtime.config import WorkerConfig
from services.runtime.config.loader import ConfigError
from services.worker.engines.registry import (
    BUILT_IN,
    GROUP,
    SEPARATE,
    installed_engines,
    open_engine,
)
from tests.worker.conformance import Bench, Conformance

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

COUNTING = '''
"""An engine that counts."""

import asyncio

from schemas.control import Load
from schemas.events import FinishReason
from services.worker.engine import EngineDelta, EngineInfo
from services.worker.engines.support import OpenTurns


class CountingEngine:
    def __init__(self, config):
        self._slots = config.slots
        self._turns = OpenTurns("counting")

    async def start(self):
        return EngineInfo("counting", "1", 4096, self._slots, None, None, [2], frozenset())

    def open(self, request, sink):
        turn = self._turns.open(request.id, sink, lambda: None)
        self._step(turn, 0, request.sampling.max_tokens)
        return turn

    def _step(self, turn, count, limit):
        def step():
            if not turn.ended:
                turn.put(EngineDelta([100 + count], finish=FinishReason.LENGTH if count + 1 == limit else None))
                self._step(turn, count + 1, limit)
        asyncio.get_running_loop().call_soon(step)

    def load(self):
        return Load(running=len(self._turns), slots=self._slots)

    def healthy(self):
        return self._turns.death is None

    async def stop(self, grace_s):
        self._turns.stop()
'''


def install(directory: Path) -> None:
    """What `pip install` of a package would leave in a folder of `sys.path`."""
    engines = "counting = counting_engine:CountingEngine\nscript = counting_engine:CountingEngine"
    (directory / "counting_engine.py").write_text(COUNTING)
    info = directory / "counting_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\n{engines}\nbroken = counting_engine:Missing\n"
    )


async def test_an_installed_package_brings_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path)
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


def test_an_unknown_name_is_one_clear_error_with_all_names() -> None:
    with pytest.raises(ConfigError) as caught:
        open_engine("nonesuch", WorkerConfig(model="none"))
    (problem,) = caught.value.problems
    assert problem.startswith("engine: there is no engine 'nonesuch'; installed are: ")
    assert problem.endswith("script, transformers, trtllm, vllm")


def test_engine_of_a_package_that_is_not_installed_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.worker.engines.registry.entry_points", lambda group: ())
    for name, command in SEPARATE.items():
        with pytest.raises(ConfigError) as caught:
            open_engine(name, WorkerConfig(model="none"))
        (problem,) = caught.value.problems
        assert command in problem
        project = tomllib.loads(
            (PYPROJECT.parent / command.split()[-1] / "pyproject.toml").read_text()
        )["project"]
        assert list(project["entry-points"][GROUP]) == [name]
