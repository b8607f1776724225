"""Commands and engines by name: another package's, and all of this one's in a clone that was never
installed."""

from pathlib import Path

import msgspec

from services.cli.registry import BUILT_IN, GROUP
from services.worker.engines import registry as engines
from tests.cli.running import install, turnwire

REPOSITORY = Path(__file__).parents[2]
COUNT = '''
from services.cli.registry import Command
from services.runtime.config import BusConfig


def count(sources, stage, /, *, fewest: int = 1):
    """Counts the heartbeats on the bus.

    Args:
        stage: Which processes.
        fewest: How many to wait for.
    """
    print(f"{fewest} heartbeats of {stage} at {sources.load(BusConfig).config.nats_url}")
    return 0


COMMAND = Command(count, [BusConfig])
'''


async def test_another_package_adds_a_command(tmp_path: Path) -> None:
    entries = "count = added:COMMAND\ntap = added:COMMAND"
    env = install(tmp_path, GROUP, entries, COUNT)
    _, overview = await turnwire("--help", env=env)
    assert "  count         Counts the heartbeats on the bus.\n" in overview
    _, text = await turnwire("count", "--help", env=env)
    assert all(flag in text for flag in ("--fewest", "--nats-url", "--connect-timeout-s"))
    counted = await turnwire("count", "parser", "--nats-url", "nats://a", "--fewest", "2", env=env)
    assert counted == (0, "2 heartbeats of parser at nats://a\n")
    assert "--fewest" not in (await turnwire("tap", "--help", env=env))[1], "none is replaced"


async def test_command_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    messages = {
        "gone": "cannot be imported: No module named 'nowhere'",
        "none": "cannot be imported: module 'added' has no attribute 'NONE'",
        "bare": "added:count is not a services.cli.registry.Command",
    }
    entries = "gone = nowhere:COMMAND\nnone = added:NONE\nbare = added:count"
    env = install(tmp_path, GROUP, entries, COUNT)
    _, overview = await turnwire("--help", env=env)
    for name, message in messages.items():
        assert await turnwire(name, env=env) == (1, f"turnwire {name}: {message}\n")
        assert message in overview


def test_entry_points_of_this_package_are_in_the_tables() -> None:
    project = msgspec.toml.decode((REPOSITORY / "pyproject.toml").read_bytes())["project"]
    declared = project["entry-points"]
    assert declared[GROUP].items() <= {name: path for name, (path, _) in BUILT_IN.items()}.items()
    assert declared[engines.GROUP] == engines.BUILT_IN
    tools = {name for name, (path, _) in BUILT_IN.items() if path.startswith("turnwire_tools.")}
    assert declared[GROUP].keys() == tools
