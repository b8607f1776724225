"""Sets up Claude Code: environment variables, which its settings.json can also hold."""

from services.cli.connect.client import AgentClient, ClientPlan, ClientSettings, Target

UNKNOWN_MODEL_OUTPUT = 32_000
"""`max_tokens` in Claude Code's requests for a model that it does not know."""
SMALL_WINDOW = 64 * 1024
"""Claude Code compacts at window - min(max_tokens, 20,000) - 3,000 tokens, and its own prompt takes
16,000. With a small window it only works with a lower `max_tokens`."""
_TIERS = ("OPUS", "SONNET", "HAIKU", "FABLE")


def make_settings(target: Target) -> ClientPlan:
    """Makes variables for the shell, and the same for settings.json."""
    name = target.model.id
    variables = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.token,
        "ANTHROPIC_MODEL": name,
        **{f"ANTHROPIC_DEFAULT_{tier}_MODEL": name for tier in _TIERS},
        **limits(target.model.window, target.model.longest),
        # headers that say what kind of request it is (docs/clients.md)
        "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",
    }
    folder = target.settings_folder("~/.claude", "CLAUDE_CONFIG_DIR")
    note = (
        f"Claude Code may know {name} and then uses its own context window for it: "
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS applies to unknown names only."
    )
    return ClientPlan(
        files=[ClientSettings(f"{folder}/settings.json", "json", {"env": variables})],
        start="claude",
        exports=variables,
        notes=[note] if name.startswith("claude-") else [],
    )


def limits(window: int, longest: int) -> dict[str, str]:
    """Makes variables for the longest answer and the context window, in tokens; 0: unknown.

    Without them, Claude Code assumes a window of a million tokens for a model that it does not
    know.
    """
    if not window:
        return {}
    variables = {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window)}
    output = window // 4 if window <= SMALL_WINDOW else UNKNOWN_MODEL_OUTPUT
    output = min(output, longest or window)
    if output < UNKNOWN_MODEL_OUTPUT:
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(output)
    return variables


CLIENT = AgentClient("Claude Code", make_settings, apis=("messages",))
