"""Tests what a preprocessor logs about its model."""

from unittest.mock import Mock

from schemas.control import ModelCard
from services.preprocessor.observer import warn_of_limits
from tests.kit.every import Cases


def test_limits_that_stop_agents_are_warned_of(cases: Cases) -> None:
    for tools, window, warnings in (
        (True, 24_000, set()),
        (False, 262_144, {"preprocessor.no_tools"}),
        (True, 23_999, {"preprocessor.small_window"}),
        (False, 4096, {"preprocessor.no_tools", "preprocessor.small_window"}),
    ):
        with cases.case(tools=tools, window=window):
            log = Mock()
            warn_of_limits(ModelCard("m", max_model_len=window, tools=tools), log)
            assert {call.args[0] for call in log.warning.call_args_list} == warnings
