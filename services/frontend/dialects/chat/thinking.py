"""What a Chat request says about reasoning, in any of the ecosystem's fields, as one word.

Who wins, first to last: `thinking` (DeepSeek, GLM, Kimi; Dynamo's boolean), `reasoning` (OpenRouter),
`enable_thinking` (Qwen's API), `reasoning_effort`. The client's `chat_template_kwargs` are applied later, over all of
them. An effort or a budget without any switch asks for reasoning; the effort `none` and a budget of 0 are switches.
"""

from typing import Literal, TypeAlias

from schemas.conversation import Thinking
from services.frontend.dialects.chat import wire
from services.frontend.dialects.openai_wording import invalid_value

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_UNSAID = ("auto", "default")
Mode: TypeAlias = Literal["default", "enabled", "adaptive", "disabled"]


def thinking(body: wire.Body) -> Thinking:
    """The client's word. Raises Invalid for an unknown effort."""
    options = body.reasoning or wire.ReasoningOptions()
    effort = _effort(body.reasoning_effort, "reasoning_effort") or _effort(options.effort, "reasoning.effort")
    switch = body.thinking if isinstance(body.thinking, wire.Thinking) else None
    budgets = (
        switch.budget_tokens if switch else None,
        options.max_tokens,
        body.thinking_budget,
        body.thinking_token_budget,
    )
    budget = next((budget for budget in budgets if budget is not None), None)
    mode = _switched(body, options)
    if mode is None:
        mode = "default" if effort is None and budget is None else "adaptive"
        mode = "disabled" if effort == "none" or budget == 0 else mode
    return Thinking(mode, budget, effort)


def _switched(body: wire.Body, options: wire.ReasoningOptions) -> Mode | None:
    given = body.thinking
    if isinstance(given, wire.Thinking):
        return "adaptive" if given.type == "auto" else given.type
    for switch in (given, options.enabled, body.enable_thinking):
        if switch is not None:
            return "enabled" if switch else "disabled"
    return None


def _effort(given: str | None, place: str) -> str | None:
    if given is None or given in _UNSAID:
        return None
    if given not in EFFORTS:
        raise invalid_value(given, place, EFFORTS)
    return given
