"""250 tools as an agent with many MCP servers has them, and tasks for 20 of them."""

from itertools import product
from typing import Any

SERVICES = {
    "github": "issue release branch workflow label",
    "gitlab": "runner snippet epic board variable",
    "jira": "ticket sprint component worklog filter",
    "slack": "channel reminder emoji usergroup canvas",
    "stripe": "refund subscription coupon payout dispute",
    "calendar": "event attendee availability holiday room",
    "gmail": "draft thread signature forwarding attachment",
    "drive": "folder permission revision shortcut comment",
    "notion": "page database block template workspace",
    "salesforce": "lead opportunity campaign contract forecast",
    "zendesk": "macro article satisfaction organization trigger",
    "shopify": "product inventory collection discount fulfillment",
    "twilio": "message recording number verification conference",
    "datadog": "monitor dashboard incident downtime synthetic",
    "sentry": "exception project alert environment replay",
    "pagerduty": "escalation schedule responder postmortem service",
    "kubernetes": "pod deployment secret namespace ingress",
    "aws": "bucket instance queue lambda snapshot",
    "postgres": "table index role view extension",
    "figma": "frame component_set style library prototype",
    "linear": "cycle initiative triage roadmap milestone",
    "hubspot": "contact deal pipeline form newsletter",
    "quickbooks": "invoice vendor payment estimate journal",
    "spotify": "playlist album episode audiobook device",
    "maps": "route place elevation geocode traffic",
}
"""Services with the things that each has."""
VERBS = {"create": "Creates", "list": "Lists"}


def tasks() -> dict[str, str]:
    """What is asked for, by the name of the tool that does it."""
    asked: dict[str, str] = {}
    for number, (service, things) in enumerate([*SERVICES.items()][:20]):
        verb, thing = [*VERBS][number % 2], things.split()[number % 5]
        asked[f"{service}_{verb}_{thing}"] = f"{verb}s the {thing} of {service}"
    return asked


def schema_of(service: str, thing: str) -> dict[str, Any]:
    """The arguments of a tool, as MCP servers describe them."""
    properties: dict[str, Any] = {
        "workspace": {"type": "string", "description": f"The workspace of {service} to look at."},
        "name": {
            "type": "string",
            "description": f"The name of the {thing}, at most 80 characters.",
        },
        "labels": {"type": "array", "items": {"type": "string"}, "description": "Labels to set."},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "Most results."},
    }
    return {"type": "object", "properties": properties, "required": ["workspace", "name"]}


def catalogue() -> list[tuple[str, str, dict[str, Any]]]:
    """Name, description and schema of each tool."""
    tools = []
    for (service, things), (verb, does) in product(SERVICES.items(), VERBS.items()):
        for thing in things.split():
            about = f"{does} a {thing} in the workspace of {service} that the user has chosen."
            tools.append((f"{service}_{verb}_{thing}", about, schema_of(service, thing)))
    return tools
