"""Command lines as a command gets them."""

from collections.abc import Mapping, Sequence

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
