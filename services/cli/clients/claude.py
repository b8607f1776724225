"""Claude Code (clients.md 3): all in environment variables, which its settings.json can hold."""

from services.cli.clients.base import BadRequest, Plan, Settings, Target, place

UNKNOWN_MODEL_OUTPUT = 32_000
"""`max_tokens` that Claude Code sends for a model which it does not know."""
SMALL_WINDOW = 64 * 1024
"""It compacts at window - min(max_tokens, 20,000) - 3,000, and its own prompt takes 16,000: in a small window it would
never get to work unless it keeps less free."""
_TIERS = ("OPUS", "SONNET", "HAIKU", "FABLE")


def plan(target: Target) -> Plan:
    """Variables for the shell, and the same for settings.json. Raises BadRequest for an API that it does not speak."""
    if target.api not in (None, "messages"):
        raise BadRequest(f"Claude Code speaks Messages, not {target.api}")
    name = target.model.id
    variables = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.token,
        "ANTHROPIC_MODEL": name,
        **{f"ANTHROPIC_DEFAULT_{tier}_MODEL": name for tier in _TIERS},
        **limits(target.model.window, target.model.longest),
    }
    folder = place(target, "~/.claude", variable="CLAUDE_CONFIG_DIR")
    return Plan(
        client="Claude Code",
        files=[Settings(f"{folder}/settings.json", "json", {"env": variables})],
        start="claude",
        exports=variables,
        notes=_notes(target),
    )


def limits(window: int, longest: int) -> dict[str, str]:
    """The window, which Claude Code takes for a million tokens where it does not know the model, and what it may ask
    for at once. Tokens; 0: unknown."""
    if not window:
        return {}
    told = {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window)}
    output = min(window // 4 if window <= SMALL_WINDOW else UNKNOWN_MODEL_OUTPUT, longest or window)
    if output < UNKNOWN_MODEL_OUTPUT:
        told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(output)
    return told


def _notes(target: Target) -> list[str]:
    if not target.model.id.startswith("claude-"):
        return []
    return [
        f"Claude Code may know {target.model.id} and then goes by its own window for it: "
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS counts for names that it does not know."
    ]
