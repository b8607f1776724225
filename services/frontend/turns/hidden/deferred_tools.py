"""Defers the tools of requests that have many, for clients that cannot defer them. Pure.

The model sees the first tools and a search, which finds the others. Tools with a name of their own
come before those with names that begin alike, as those of an MCP server do: opencode sorts all
tools by name. A client that keeps its list has the same tools deferred in every request of a
session, so that prompts keep their prefix.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from schemas.conversation import Conversation, HostedTool, ToolChoice, ToolSpec
from services.frontend.content.hosted_tools import hosted_spec

_SEARCH: Final = "tool_search"
"""The name of the search. A client's tool of this name is a search of its own."""
_FIRST_WORD: Final = re.compile(r"[^A-Za-z0-9]+")
_CLIENT_SEARCHES: Final = frozenset({"toolsearch", "searchtools"})
"""Names of clients' own searches, without case and separators: Claude Code's, Codex's."""


def defer_tools(conversation: Conversation, listed: int) -> Conversation:
    """Returns the conversation with its tools after the first `listed` deferred, and with a search
    for them as the last tool.

    The same conversation if it has no more tools than that, or defers tools or searches them
    itself, or asks for token ids: an answer of several turns has none.
    """
    tools = conversation.tools
    if len(tools) <= listed or conversation.sampling.return_token_ids:
        return conversation
    if any(map(_is_of_search, tools)):
        return conversation
    beyond = _deferrable(conversation, listed)
    if not beyond:
        return conversation
    deferred = [
        replace(tool, deferred=True) if index in beyond else tool
        for index, tool in enumerate(tools)
    ]
    search = hosted_spec(HostedTool("tool_search_bm25", hidden=True), _SEARCH)
    choice = conversation.tool_choice
    if choice.allowed:
        choice = replace(choice, allowed=[*choice.allowed, _SEARCH])
    return replace(conversation, tools=[*deferred, search], tool_choice=choice)


def last_choice(choice: ToolChoice, tools: Sequence[ToolSpec]) -> ToolChoice:
    """Returns the choice for the last turn of an answer, in which hosted tools are not run. A
    required call is one of the client; one of a hidden tool that is not required is left out."""
    names = [tool.rendered_name for tool in tools if tool.hosted is None]
    if not names or any(tool.hosted is not None and not tool.hosted.hidden for tool in tools):
        return ToolChoice("none")
    if choice.mode != "any":
        return choice
    hosted = {tool.name for tool in tools if tool.hosted is not None}
    allowed = [name for name in choice.allowed if name not in hosted]
    return replace(choice, allowed=allowed or names)


def _is_of_search(tool: ToolSpec) -> bool:
    """Returns whether a tool shows that the client searches tools, or has them searched."""
    if tool.hosted is not None:
        return tool.hosted.searches_tools
    bare_name = tool.name.replace("_", "").replace("-", "").lower()
    return tool.deferred or bare_name in _CLIENT_SEARCHES


def _deferrable(conversation: Conversation, listed: int) -> Collection[int]:
    """Returns the indices of the tools to defer. A tool that `tool_choice` names stays listed: the
    model must see it."""
    choice = conversation.tool_choice
    named = {*choice.allowed}
    if choice.name is not None:
        named.add(choice.rendered_name)
    beyond = _distinct_names_first(conversation.tools)[listed:]
    return {index for index in beyond if conversation.tools[index].rendered_name not in named}


def _distinct_names_first(tools: Sequence[ToolSpec]) -> list[int]:
    """Returns the indices of the client's tools, those with a name of their own first."""
    first_words = {
        index: _FIRST_WORD.split(tool.rendered_name, 1)[0]
        for index, tool in enumerate(tools)
        if tool.hosted is None
    }
    counts = Counter(first_words.values())
    return sorted(first_words, key=lambda index: counts[first_words[index]] > 1)
