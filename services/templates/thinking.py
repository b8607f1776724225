"""Decides on reasoning for a request and sets the template variables for it.

Precedence, lowest first: the model's default, the operator's `template_kwargs`, the API's thinking
controls, the client's `chat_template_kwargs`. The same holds for verbosity.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from schemas.conversation import EFFORTS, Conversation, Message, Reasoning, Result
from services.templates.traits import TemplateTraits

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
    messages = conversation.messages
    if conversation.thinking.history != "drop":
        return conversation
    last_user = max(
        (at for at, message in enumerate(messages) if _is_user_message(message)), default=0
    )
    kept = [
        _without_reasoning(message) if at < last_user else message
        for at, message in enumerate(messages)
    ]
    return replace(conversation, messages=kept)


def _is_user_message(message: Message) -> bool:
    return message.role == "user" and any(not isinstance(part, Result) for part in message.parts)


def _without_reasoning(message: Message) -> Message:
    return replace(
        message, parts=[part for part in message.parts if not isinstance(part, Reasoning)]
    )


def template_variables(
    conversation: Conversation,
    traits: TemplateTraits,
    *,
    defaults: Mapping[str, Any],
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """The variables to render with. `defaults` are the operator's, `own` the client's, which take
    precedence.

    Only variables that the template reads are set. A level of effort that it lacks becomes the
    nearest one, also where thinking is off: some models cannot turn it off but lower the effort.
    Turns with tools keep the reasoning that explains their calls; others follow the model. A forced
    call changes nothing here: some templates write the variables at the start of the prompt (Gemma
    4, gpt-oss), which must not change within a session. Open reasoning is closed at the end of the
    prompt instead.
    """
    thinking, variables = conversation.thinking, dict[str, Any]()
    enabled = {"default": None, "enabled": True, "adaptive": True, "disabled": False}[thinking.mode]
    if thinking.effort == "none" and thinking.mode in ("default", "adaptive"):
        enabled = False
    keep = thinking.history == "keep" or (
        thinking.history == "default" and bool(conversation.tools)
    )
    if keep:
        variables |= {
            name: value for name, value in KEEP_HISTORY.items() if name in traits.variables
        }
    variables |= defaults
    if thinking.history != "default":
        chosen = KEEP_HISTORY if keep else DROP_HISTORY
        variables |= {name: value for name, value in chosen.items() if name in traits.variables}
    if conversation.verbosity is not None and "verbosity" in traits.variables:
        variables["verbosity"] = conversation.verbosity
    if enabled is not None:
        variables |= dict.fromkeys(traits.switches, enabled)
        if "thinking_mode" in traits.variables:  # MiniMax M3
            variables["thinking_mode"] = "enabled" if enabled else "disabled"
    if enabled is False and _can_be_off(traits):
        variables |= {name: "none" for name, levels in traits.efforts.items() if "none" in levels}
    elif thinking.effort in EFFORTS:
        variables |= {
            name: _nearest(thinking.effort, levels)
            for name, levels in traits.efforts.items()
            if levels
        }
    if thinking.budget_tokens is not None and enabled is not False:
        variables |= {name: thinking.budget_tokens for name in _BUDGETS if name in traits.variables}
    return {**variables, **own}


def _can_be_off(traits: TemplateTraits) -> bool:
    switched = bool(traits.switches) or "thinking_mode" in traits.variables
    return switched or any("none" in levels for levels in traits.efforts.values())


def _nearest(effort: str, levels: tuple[str, ...]) -> str:
    target = EFFORTS.index(effort)
    candidates = [level for level in levels if level in EFFORTS]
    return min(
        candidates,
        key=lambda level: (abs(EFFORTS.index(level) - target), -EFFORTS.index(level)),
        default=effort,
    )
