from typing import Any

import pytest

from schemas.conversation import Conversation, Message, Text, Thinking, ToolSpec
from services.templates.thinking import template_variables
from services.templates.traits import TemplateTraits

NAMES = (
    "enable_thinking thinking thinking_mode thinking_budget reasoning_effort preserve_thinking "
    "clear_thinking truncate_history_thinking"
)
ALL_NAMES = TemplateTraits(
    variables=frozenset(NAMES.split()),
    switches=("enable_thinking", "thinking"),
    efforts={"reasoning_effort": ("none", "low", "medium", "high")},
)


def variables(
    thinking: Thinking | None = None,
    *,
    traits: TemplateTraits = ALL_NAMES,
    tools: bool = False,
    defaults: dict[str, Any] | None = None,
    own: dict[str, Any] | None = None,
) -> dict[str, Any]:
    conversation = Conversation(
        "m",
        [Message("user", [Text("hi")])],
        tools=[ToolSpec("t")] if tools else [],
        thinking=thinking or Thinking(),
    )
    return template_variables(conversation, traits, defaults=defaults or {}, client=own or {})


def test_without_settings_the_model_decides() -> None:
    assert variables() == {}


@pytest.mark.parametrize("mode", ["enabled", "adaptive"])
def test_enabled_thinking_sets_every_switch(mode: str) -> None:
    assert variables(Thinking(mode)) == {  # type: ignore[arg-type]
        "enable_thinking": True,
        "thinking": True,
        "thinking_mode": "enabled",
    }


def test_disabled_thinking_sets_every_variable_that_the_template_reads() -> None:
    assert variables(Thinking("disabled", effort="high")) == {
        "enable_thinking": False,
        "thinking": False,
        "thinking_mode": "disabled",
        "reasoning_effort": "none",
    }


def test_model_that_always_thinks_gets_the_effort() -> None:
    """gpt-oss."""
    traits = TemplateTraits(
        variables=frozenset({"reasoning_effort"}),
        efforts={"reasoning_effort": ("low", "medium", "high")},
    )
    assert variables(Thinking("disabled", effort="low"), traits=traits) == {
        "reasoning_effort": "low"
    }
    assert variables(Thinking("disabled"), traits=traits) == {}


def test_effort_none_disables_thinking() -> None:
    assert variables(Thinking(effort="none"))["enable_thinking"] is False


@pytest.mark.parametrize(
    ("effort", "level"),
    [("minimal", "low"), ("medium", "medium"), ("max", "high"), ("ludicrous", None)],
)
def test_effort_becomes_the_nearest_level_of_the_template(effort: str, level: str | None) -> None:
    assert variables(Thinking(effort=effort)).get("reasoning_effort") == level


def test_between_two_levels_the_greater_wins() -> None:
    traits = TemplateTraits(
        variables=frozenset({"reasoning_effort"}),
        efforts={"reasoning_effort": ("low", "medium", "xhigh")},
    )
    assert variables(Thinking(effort="high"), traits=traits) == {"reasoning_effort": "xhigh"}


def test_budget_is_set_only_while_thinking() -> None:
    assert variables(Thinking("enabled", budget_tokens=512))["thinking_budget"] == 512
    assert "thinking_budget" not in variables(Thinking("disabled", budget_tokens=512))


def test_requests_with_tools_keep_old_reasoning() -> None:
    keep = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False}
    assert variables(tools=True) == keep
    assert variables(tools=False) == {}


def test_client_precedes_operator_and_model() -> None:
    operator = {"enable_thinking": False, "preserve_thinking": False, "flavour": 1}
    assert variables(tools=True, defaults=operator)["preserve_thinking"] is False
    assert variables(defaults=operator) == operator
    assert variables(Thinking("enabled"), defaults=operator)["enable_thinking"] is True
    assert variables(
        Thinking("enabled"), defaults=operator, own={"enable_thinking": False, "x": 2}
    ) == {
        "enable_thinking": False,
        "thinking": True,
        "thinking_mode": "enabled",
        "preserve_thinking": False,
        "flavour": 1,
        "x": 2,
    }


def test_variables_that_the_template_does_not_read_are_not_set() -> None:
    assert (
        variables(
            Thinking("disabled", effort="low", budget_tokens=1), traits=TemplateTraits(), tools=True
        )
        == {}
    )


@pytest.mark.parametrize("tools", [True, False])
def test_clients_setting_for_old_reasoning_precedes_the_operators(tools: bool) -> None:
    kept = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False}
    dropped = {name: not value for name, value in kept.items()}
    assert variables(Thinking(history="keep"), tools=tools, defaults=dropped) == kept
    assert variables(Thinking(history="drop"), tools=tools, defaults=kept) == dropped
    assert (
        variables(Thinking(history="drop"), tools=tools, own={"clear_thinking": False})[
            "clear_thinking"
        ]
        is False
    )


def test_verbosity_is_set_where_the_template_reads_it() -> None:
    conversation = Conversation("m", [], verbosity="low")
    reads = TemplateTraits(variables=frozenset({"verbosity"}))
    assert template_variables(conversation, reads, defaults={"verbosity": "high"}, client={}) == {
        "verbosity": "low"
    }
    assert template_variables(conversation, TemplateTraits(), defaults={}, client={}) == {}
    assert template_variables(Conversation("m", []), reads, defaults={}, client={}) == {}
