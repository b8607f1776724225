"""The commands among the tools look for a running `turnwire up`, as those of `tests/cli` do."""

from tests.cli.conftest import home, own_home

__all__ = ["home", "own_home"]
