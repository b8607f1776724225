"""Plans of `up`, from flags and an environment."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from services.cli.up.command import COMMAND
from services.cli.up.plan import UpPlan, make_plan
from services.runtime.config.base import Config
from services.runtime.config.command_line import run_command
from services.runtime.config.loader import Sources


def sources_of(
    argv: Sequence[str], *configs: type[Config], env: Mapping[str, str] | None = None
) -> Sources:
    """What a command with these flags and this environment gets."""
    seen: list[Sources] = []

    def command(sources: Sources) -> int:
        seen.append(sources)
        return 0

    assert run_command(command, "turnwire", argv, *configs, env=env or {}) == 0
    return seen[0]


def plan(*argv: str, env: Mapping[str, str] | None = None, state: Path = Path("/state")) -> UpPlan:
    return make_plan(sources_of([f"--state-dir={state}", *argv], *COMMAND.settings, env=env))
