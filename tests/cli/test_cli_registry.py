"""Commands and engines by name: another package's, and all of this one's in a clone that was never
installed."""

from pathlib import Path

import msgspec
import pytest

from services.cli.main import main
from services.cli.registry import BUILT_IN, GROUP
from services.worker.engines import registry as engines
from tests.kit.installing import install

REPOSITORY = Path(__file__).parents[2]
COUNT = '''
from services.cli.registry import Command
from services.runtime.config.service import BusConfig


def tally(sources, stage, /, *, fewest: int = 1):
    """Counts the heartbeats on the bus.

    Args:
        stage: Which processes.
        fewest: How many to wait for.
    """
    print(f"{fewest} heartbeats of {stage} at {sources.load(BusConfig).config.nats_url}")
    return 0


COMMAND = Command(tally, [BusConfig])
'''


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    status = main(argv)
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def test_another_package_adds_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {
        "gone": ("nowhere:COMMAND", "cannot be imported: No module named 'nowhere'"),
        "none": ("added:NONE", "cannot be imported: module 'added' has no attribute 'NONE'"),
        "bare": ("added:tally", "added:tally is not a services.cli.registry.Command"),
    }
    entries = [f"{name} = {place}" for name, (place, _) in broken.items()]
    entries += ["tally = added:COMMAND", "tap = added:COMMAND"]
    install(tmp_path, "added", COUNT, GROUP, *entries)
    monkeypatch.syspath_prepend(tmp_path)
    _, overview = run(capsys, "--help")
    assert "  tally         Counts the heartbeats on the bus.\n" in overview
    for name, (_, message) in broken.items():
        assert run(capsys, name) == (1, f"turnwire {name}: {message}\n")
        assert message in overview
    _, text = run(capsys, "tally", "--help")
    flags = ("--fewest", "--nats-url", "--connect-timeout-s")
    assert [flag for flag in flags if flag not in text] == []
    counted = run(capsys, "tally", "parser", "--nats-url", "nats://a", "--fewest", "2")
    assert counted == (0, "2 heartbeats of parser at nats://a\n")
    assert "--fewest" not in run(capsys, "tap", "--help")[1], "none is replaced"


def test_entry_points_of_this_package_are_in_the_tables() -> None:
    project = msgspec.toml.decode((REPOSITORY / "pyproject.toml").read_bytes())["project"]
    declared = project["entry-points"]
    assert declared[GROUP].items() <= {name: path for name, (path, _) in BUILT_IN.items()}.items()
    assert declared[engines.GROUP] == engines.BUILT_IN
    tools = {name for name, (path, _) in BUILT_IN.items() if path.startswith("turnwire_tools.")}
    assert declared[GROUP].keys() == tools
