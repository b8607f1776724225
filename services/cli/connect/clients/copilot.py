"""Sets up GitHub Copilot CLI with a provider of the user's own, by default with Messages (with
Responses it sends reasoning back as text, too). It reads the settings from environment variables
only."""

from services.cli.connect.client import PROVIDER, AgentClient, ClientPlan, ClientSettings, Target


def make_settings(target: Target) -> ClientPlan:
    """Makes variables, and a file with them that a shell reads."""
    api = target.api or "messages"
    variables = {
        "COPILOT_PROVIDER_TYPE": "anthropic" if api == "messages" else "openai",
        "COPILOT_PROVIDER_BASE_URL": target.base_url(api),
        "COPILOT_PROVIDER_API_KEY": target.token,
        "COPILOT_MODEL": target.model.id,
    }
    if api == "chat":
        variables["COPILOT_PROVIDER_WIRE_API"] = "completions"
    elif api == "responses":
        variables["COPILOT_PROVIDER_WIRE_API"] = "responses"
        if target.websockets:
            variables["COPILOT_PROVIDER_TRANSPORT"] = "websockets"
    window = target.model.window
    if window:
        longest = target.model.output_in(window)
        variables["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] = str(window - longest)
        variables["COPILOT_PROVIDER_MAX_OUTPUT_TOKENS"] = str(longest)
    path = f"{target.settings_folder('~/.copilot', 'COPILOT_HOME')}/{PROVIDER}.env"
    return ClientPlan(
        [ClientSettings(path, "env", variables, whole=True)], start="copilot", exports=variables
    )


CLIENT = AgentClient("GitHub Copilot CLI", make_settings)
