"""Decides on reasoning for a request and sets the template variables for it.

Precedence, lowest first: the model's default, the operator's `template_kwargs`, the API's thinking
controls, the client's `chat_template_kwargs`. The same holds for verbosity.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from schemas.conversation import EFFORTS, Conversation, Message, Reasoning, Result, Thinking
from services.templates.traits import TemplateInputs

SWITCHES = ("enable_thinking", "thinking")
EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_BUDGETS = ("thinking_budget", "reasoning_budget")
KEEP_HISTORY: dict[str, Any] = {
    "preserve_thinking": True,  # Qwen3.6, LFM2.5, Kimi K2.6, Gemma 4
    "clear_thinking": False,  # GLM 4.7 to 5.3
    "truncate_history_thinking": False,  # Nemotron 3
    "think_render_option": "all",  # Solar
}
DROP_HISTORY: dict[str, Any] = {
    "preserve_thinking": False,
    "clear_thinking": True,
    "truncate_history_thinking": True,
}
"""Solar's option is left out: its default drops reasoning."""


def without_old_reasoning(conversation: Conversation) -> Conversation:
    """Removes the reasoning before the last user message if the client asks for that: most
    templates have no variable for it, and some keep all reasoning."""
    if conversation.thinking.history != "drop":
        return conversation
    messages = list(conversation.messages)
    users = [at for at, message in enumerate(messages) if _is_user_message(message)]
    last_user = users[-1] if users else 0
    messages[:last_user] = map(_without_reasoning, messages[:last_user])
    return replace(conversation, messages=messages)


def _is_user_message(message: Message) -> bool:
    return message.role == "user" and any(not isinstance(part, Result) for part in message.parts)


def _without_reasoning(message: Message) -> Message:
    parts = [part for part in message.parts if not isinstance(part, Reasoning)]
    return replace(message, parts=parts)


def template_variables(
    conversation: Conversation,
    inputs: TemplateInputs,
    *,
    defaults: Mapping[str, Any],
    client: Mapping[str, Any],
) -> dict[str, Any]:
    """The variables to render with. `defaults` are the operator's; those of the `client` take
    precedence.

    Only variables that the template reads are set. A level of effort that it lacks becomes the
    nearest one, also where thinking is off: some models cannot turn it off but lower the effort.
    Turns with tools keep the reasoning that explains their calls; others follow the model. A forced
    call changes nothing here: some templates write the variables at the start of the prompt (Gemma
    4, gpt-oss), which must not change within a session. Open reasoning is closed at the end of the
    prompt instead.
    """
    thinking = conversation.thinking
    enabled = _is_enabled(thinking)
    keeps_history = thinking.history == "keep"
    if thinking.history == "default":
        keeps_history = bool(conversation.tools)

    variables: dict[str, Any] = {}
    if keeps_history:
        variables |= _that_are_read(KEEP_HISTORY, inputs)
    variables |= defaults
    if thinking.history != "default":
        chosen = KEEP_HISTORY if keeps_history else DROP_HISTORY
        variables |= _that_are_read(chosen, inputs)

    if conversation.verbosity is not None:
        variables |= _that_are_read({"verbosity": conversation.verbosity}, inputs)
    if enabled is not None:
        variables |= _switches(enabled, inputs)
    variables |= _efforts(thinking, enabled, inputs)
    if thinking.budget_tokens is not None and enabled is not False:
        variables |= _that_are_read(dict.fromkeys(_BUDGETS, thinking.budget_tokens), inputs)
    return {**variables, **client}


def _is_enabled(thinking: Thinking) -> bool | None:
    """Whether the model is to think; None: as it does by default."""
    if thinking.mode == "disabled":
        return False
    if thinking.effort == "none" and thinking.mode in ("default", "adaptive"):
        return False
    return None if thinking.mode == "default" else True


def _that_are_read(variables: Mapping[str, Any], inputs: TemplateInputs) -> dict[str, Any]:
    """The variables that the template reads."""
    return {name: value for name, value in variables.items() if name in inputs.variables}


def _switches(enabled: bool, inputs: TemplateInputs) -> dict[str, Any]:
    """The variables that turn thinking on or off."""
    variables: dict[str, Any] = dict.fromkeys(inputs.switches, enabled)
    if "thinking_mode" in inputs.variables:  # MiniMax M3
        variables["thinking_mode"] = "enabled" if enabled else "disabled"
    return variables


def _efforts(thinking: Thinking, enabled: bool | None, inputs: TemplateInputs) -> dict[str, Any]:
    """The variables with a level of effort."""
    if enabled is False and _can_be_off(inputs):
        return {name: "none" for name, levels in inputs.efforts.items() if "none" in levels}
    effort = thinking.effort
    if effort not in EFFORTS:
        return {}
    levels_of = inputs.efforts.items()
    return {name: _nearest(effort, levels) for name, levels in levels_of if levels}


def _can_be_off(inputs: TemplateInputs) -> bool:
    switched = bool(inputs.switches) or "thinking_mode" in inputs.variables
    return switched or any("none" in levels for levels in inputs.efforts.values())


def _nearest(effort: str, levels: tuple[str, ...]) -> str:
    """The level nearest to an effort; of two equally near ones the higher."""
    target = EFFORTS.index(effort)
    ranks = [EFFORTS.index(level) for level in levels if level in EFFORTS]
    if not ranks:
        return effort
    return EFFORTS[min(ranks, key=lambda rank: (abs(rank - target), -rank))]
