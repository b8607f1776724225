"""Finds a tool for what the user asks for ("Use a tool that sends a parcel."), in the list or by a
search of the client or the server. Pure."""

import re
from collections.abc import Iterable

from msgspec.structs import replace

from turnwire_tools.script.agent_prompt import AgentPrompt, OfferedTool, json_tools
from turnwire_tools.script.agent_tools import AgentCall, make_call

_TASK = re.compile(
    r"\b(?:use|call|find) (?:a|the) tool (?:that|which) (?P<task>[^.\n]+)", re.IGNORECASE
)
_WORD = re.compile(r"[a-z0-9]+")
_SMALL_WORDS = frozenset(("a", "an", "and", "at", "by", "for", "in", "of", "on", "or", "the", "to"))
_ARGUMENTS = ("query", "pattern")
"""What a search of tools takes: words, or a regular expression."""


def asked_task(request: str) -> str:
    """What the tool should do that the user asks for; "" if the user asks for none."""
    task = _TASK.search(request)
    return "" if task is None else task["task"]


def calls_for_task(task: str, view: AgentPrompt) -> list[AgentCall]:
    """The calls that do a task, in order: a search, if one is offered, and the best tool that is
    known by now."""
    known = [tool for tool in view.tools if _searched_by(tool) is None]
    for result in view.results:
        known += json_tools(result)
    fitting = [tool for tool in known if _fit(task, tool)]
    best = max(fitting, key=lambda tool: (_fit(task, tool), _fit_of_name(task, tool)), default=None)
    search = next((tool for tool in view.tools if _searched_by(tool)), None)
    calls = [] if search is None else [_search(search, task)]
    if best is not None and (search is None or view.results):
        calls.append(make_call(best, {}))
    return calls


def _searched_by(tool: OfferedTool) -> str | None:
    """The argument of a search of tools; None for any other tool."""
    properties = tool.schema.get("properties")
    if "search" not in tool.name.lower() or not isinstance(properties, dict):
        return None
    return next((name for name in _ARGUMENTS if name in properties), None)


def _search(tool: OfferedTool, task: str) -> AgentCall:
    argument = _searched_by(tool) or ""
    words = _words([task])
    if argument == "query":
        return AgentCall(tool.name, {argument: " ".join(words)})
    longest = sorted(words, key=len)[-2:]
    both_orders = [".*".join(longest), ".*".join(reversed(longest))]
    return AgentCall(tool.name, {argument: "|".join(dict.fromkeys(both_orders))})


def _fit(task: str, tool: OfferedTool) -> int:
    """How many words of a task a tool has."""
    known = set(_words([tool.name, tool.description]))
    return sum(word in known for word in _words([task]))


def _fit_of_name(task: str, tool: OfferedTool) -> int:
    """How many words of a task the tool's name has: a shell's description has any."""
    return _fit(task, replace(tool, description=""))


def _words(texts: Iterable[str]) -> list[str]:
    """The words that mean something, each once, without a plural's or a verb's s."""
    words = dict.fromkeys(_WORD.findall(" ".join(texts).lower()))
    return [word.rstrip("s") for word in words if word not in _SMALL_WORDS]
