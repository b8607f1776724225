"""The variables of a template that decide whether and how much the model thinks."""

from typing import Any

from schemas.conversation import Conversation, Thinking, ToolSpec
from services.templates.thinking import template_variables
from services.templates.traits import TemplateInputs
from tests.kit.conversations import user
from tests.kit.every import for_rows

NAMES = (
    "enable_thinking thinking thinking_mode thinking_budget reasoning_effort preserve_thinking "
    "clear_thinking truncate_history_thinking"
)
ALL_NAMES = TemplateInputs(
    variables=frozenset(NAMES.split()),
    switches=("enable_thinking", "thinking"),
    efforts={"reasoning_effort": ("none", "low", "medium", "high")},
)


def variables(
    thinking: Thinking | None = None,
    *,
    inputs: TemplateInputs = ALL_NAMES,
    tools: bool = False,
    defaults: dict[str, Any] | None = None,
    own: dict[str, Any] | None = None,
) -> dict[str, Any]:
    conversation = Conversation(
        "m",
        [user("hi")],
        tools=[ToolSpec("t")] if tools else [],
        thinking=thinking or Thinking(),
    )
    return template_variables(conversation, inputs, defaults=defaults or {}, client=own or {})


OFF = {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled"}
ON = {"enable_thinking": True, "thinking": True, "thinking_mode": "enabled"}


def levels(*names: str) -> TemplateInputs:
    """A template that always thinks, as much as one variable says."""
    variable = "reasoning_effort"
    return TemplateInputs(variables=frozenset({variable}), efforts={variable: names})


GPT_OSS = levels("low", "medium", "high")


@for_rows(
    [
        # The model decides; every switch that the template reads is set; others are not.
        (Thinking(), ALL_NAMES, {}),
        (Thinking("enabled"), ALL_NAMES, ON),
        (Thinking("disabled", effort="high"), ALL_NAMES, {**OFF, "reasoning_effort": "none"}),
        (Thinking("disabled", effort="low", budget_tokens=1), TemplateInputs(), {}),
        # A budget is set only while thinking.
        (Thinking("enabled", budget_tokens=512), ALL_NAMES, {**ON, "thinking_budget": 512}),
        # The nearest level of the template; between two levels the greater wins.
        (Thinking(effort="minimal"), ALL_NAMES, {"reasoning_effort": "low"}),
        (Thinking(effort="max"), ALL_NAMES, {"reasoning_effort": "high"}),
        (Thinking(effort="ludicrous"), ALL_NAMES, {}),
        (Thinking(effort="high"), levels("low", "medium", "xhigh"), {"reasoning_effort": "xhigh"}),
        (Thinking("disabled", effort="low"), GPT_OSS, {"reasoning_effort": "low"}),
        (Thinking("disabled"), GPT_OSS, {}),
    ]
)
def test_thinking_sets_the_variables_that_the_template_reads(
    thinking: Thinking, inputs: TemplateInputs, expected: dict[str, Any]
) -> None:
    assert variables(thinking, inputs=inputs) == expected


def test_client_precedes_operator_and_model() -> None:
    operator = {"enable_thinking": False, "preserve_thinking": False, "flavour": 1}
    assert variables(tools=True, defaults=operator)["preserve_thinking"] is False
    assert variables(defaults=operator) == operator
    assert variables(Thinking("enabled"), defaults=operator)["enable_thinking"] is True
    own = {"enable_thinking": False, "x": 2}
    found = variables(Thinking("enabled"), defaults=operator, own=own)
    assert found == {**operator, **ON, **own}

    brief = Conversation("m", [], verbosity="low")
    reads = TemplateInputs(variables=frozenset({"verbosity"}))
    found = template_variables(brief, reads, defaults={"verbosity": "high"}, client={})
    assert found == {"verbosity": "low"}


def test_old_reasoning_is_kept_for_tools_unless_the_client_or_operator_decides() -> None:
    kept = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False}
    dropped = {name: not value for name, value in kept.items()}
    assert variables(tools=True) == kept
    assert variables(Thinking(history="keep"), defaults=dropped) == kept
    assert variables(Thinking(history="drop"), tools=True, defaults=kept) == dropped
    own = {"clear_thinking": False}
    assert variables(Thinking(history="drop"), own=own)["clear_thinking"] is False
