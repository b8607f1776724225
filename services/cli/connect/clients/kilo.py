"""Sets up Kilo's CLI: a provider in kilo.json, in the form of opencode, from which Kilo is
derived."""

from services.cli.connect.client import AgentClient, ClientPlan, Target
from services.cli.connect.clients.opencode import plan_for


def make_settings(target: Target) -> ClientPlan:
    """Makes a provider with all served models."""
    return plan_for(target, "kilo", "https://app.kilo.ai/config.json")


CLIENT = AgentClient("Kilo", make_settings)
