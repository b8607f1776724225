"""The scripted agent: a small set of rules in place of a model, so that a harness can work without
one.

It reads the prompt that a model would read, writes one line of reasoning, calls the right tool in
the family's own format and closes the loop when the result is there. It does what the last user
message asks for in plain words: commands in backticks, files to read, write or edit. Anything else
gets a description of itself. Pure.
"""

import json
import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import OutputFormat
from services.families import Family
from turnwire_tools.script.agent_prompt import (
    AgentPrompt,
    output_of,
    read_prompt,
    without_additions,
)
from turnwire_tools.script.agent_schema import Schema, instance
from turnwire_tools.script.agent_search import asked_task, calls_for_task
from turnwire_tools.script.agent_steps import (
    Step,
    edits_as_text,
    find_steps,
    make_calls,
    together,
)
from turnwire_tools.script.agent_tools import AgentCall, find_tool, make_call

ABOUT = (
    "This is Turnwire's scripted demo engine: a few rules, and no model behind them. Put a shell "
    "command in backticks, or ask for a file to be read, written or edited, and it makes the tool "
    "calls a model would make."
)


class Reply(Struct, frozen=True):
    """The agent's next output: a thought, and then either text or calls."""

    thought: str
    text: str = ""
    calls: list[AgentCall] = []


_WORD = re.compile(
    r"\b(?:answer|reply|respond|say)\b[^.\n`\"']{0,40}?\bwith\b[^.\n`\"']{0,40}?\bword[s:]*\s+(?P<quote>[\"'`*]*)(?P<word>[\w-]+)",
    re.IGNORECASE,
)
_EXACTLY = re.compile(
    r"\b(?:[Aa]nswer|[Rr]eply|[Rr]espond)(?: only| just)? with(?: only| just| exactly)*:? "
    r"(?:(?P<quote>[\"'`])(?P<word>(?:(?!(?P=quote))[^\n])+)(?P=quote)|(?P<bare>[A-Z][A-Z0-9_-]+)\b)"
)
_COMPACTION = re.compile(
    r"\bTEXT ONLY\b|CHECKPOINT COMPACTION|handoff summary|(?:detailed|concise) summary of "
    r"(?:the|our|this) conversation"
    r"|^Summarize the conversation so far|prompt for continuing our conversation"
    r"|Here is the conversation so far:\s*<conversation>"
)
_TRANSCRIPT_USER = re.compile(r"^\[User\]: (.*)$", re.MULTILINE)
"""opencode sends a conversation as one text for a summary."""
_TITLE = re.compile(r"\btitle\b", re.IGNORECASE)
_SESSION = re.compile(r"<session>\s*(.*?)\s*</session>", re.DOTALL)
_LINE_CHARS = 200
_OVERLAP_CHARS = 8


def act(prompt: str, family: Family, form: OutputFormat | None = None, seen: str = "") -> str:
    """The output that follows `prompt`, its end token not included. With `form` the answer is JSON
    of that form. `seen`: the description of new images, with which any other text begins."""
    view = read_prompt(prompt)
    reply = decide(view, form)
    if seen and reply.text and form is None:
        reply = replace(reply, text=f"{seen}\n\n{reply.text}")
    return compose(reply, view, family)


def decide(view: AgentPrompt, form: OutputFormat | None = None) -> Reply:
    """The next reply, whatever the family."""
    if form is not None:
        return _in_form(view, form)
    if _COMPACTION.search(view.request):
        return Reply("I am asked for a summary, and for no tool.", _summary(view))
    if not view.tools and _asks_for_title(view):
        return Reply("I am asked for a title.", _title(view))

    word = _asked_word(view.request)
    steps = find_steps(view.request, word.span)
    task = asked_task(view.request)
    calls = calls_for_task(task, view) if task else _calls_for(steps, view)
    todo = calls[len(view.results) :]
    if todo:
        at_once = together(view.request) and all(step.kind != "edit" for step in steps)
        return _calling(todo) if at_once else _calling(todo[:1])
    if view.results:
        return _after_results(view, word.text, has_more=len(view.results) > len(calls))
    return _without_calls(view, steps, word.text)


def _in_form(view: AgentPrompt, form: OutputFormat) -> Reply:
    any_answer = {"properties": {"answer": {}}, "required": ["answer"]}
    value = instance(form.schema or any_answer, _title(view))
    return Reply("The answer must have a given form.", json.dumps(value, ensure_ascii=False))


def _asks_for_title(view: AgentPrompt) -> bool:
    rules = "".join(message.text for message in view.messages if message.role == "system")
    return _TITLE.search(view.request + rules) is not None


def _calls_for(steps: list[Step], view: AgentPrompt) -> list[AgentCall]:
    """The calls that do all steps; some need the results of those before."""
    calls: list[AgentCall] = []
    for step in steps:
        calls += make_calls(step, view.tools, view.directory, view.results[len(calls) :])
    return calls


def _after_results(view: AgentPrompt, asked: str, *, has_more: bool) -> Reply:
    """The answer when everything is done. `has_more`: more results came than calls were needed."""
    thought = f"The tool answered: {_first_line(view.results[-1])}"
    text = asked or _report(view.results)
    return Reply(thought, text) if has_more else _ending(thought, text, view)


def _without_calls(view: AgentPrompt, steps: list[Step], asked: str) -> Reply:
    """The answer where nothing can be called. `asked`: the word that it has to be."""
    edits = "" if view.tools else edits_as_text(steps, view)
    if edits:
        thought = "I have no tools, and write the changes into the answer."
        return Reply(thought, f"{edits}\n\n{asked}".rstrip())
    if asked and not steps:
        return _ending("I am asked for this word and for nothing else.", asked, view)
    if steps:
        thought = "I am asked for work, and have no tool that does it."
        return Reply(thought, f"No tool for this is offered. {ABOUT}")
    return _ending("There is nothing in this request that I have a rule for.", ABOUT, view)


def compose(reply: Reply, view: AgentPrompt, family: Family) -> str:
    """The reply in the family's form, from where the prompt ends: before, inside or after the
    reasoning, or after the opening of a forced call. Where the prompt is not a chat, the bare
    text."""
    if not view.chat:
        return reply.text
    style = family.style
    calls = [style.write_call(call.name, call.arguments) for call in reply.calls]
    body = "\n".join(calls) or reply.text
    reasoning = ""
    if style.reasoning:
        reasoning = style.write_reasoning(reply.thought)

    opening = view.opening
    if not opening.strip():
        return reasoning + body
    if reasoning.startswith(opening):
        return reasoning[len(opening) :] + body

    forced = [style.write_call(tool.name, _least(tool.schema)) for tool in view.tools]
    for text in (body, *forced):
        shared = _overlap(opening, text)
        if shared:
            return text[shared:]
    return body


def _overlap(opening: str, text: str) -> int:
    """How many characters at the end of an opening are the beginning of a text; few do not
    count."""
    longest = min(len(opening), len(text))
    for shared in range(longest, _OVERLAP_CHARS - 1, -1):
        if opening.endswith(text[:shared]):
            return shared
    return 0


def _ending(thought: str, text: str, view: AgentPrompt) -> Reply:
    """Ends the work: with the tool for that, where the client has one and asks again until it is
    called."""
    tool = find_tool("finish", view.tools)
    if tool is None:
        return Reply(thought, text)
    return Reply(thought, calls=[make_call(tool, {"answer": text})])


def _calling(calls: list[AgentCall]) -> Reply:
    names = sorted({call.name for call in calls})
    if len(calls) == 1:
        return Reply(f"I am asked to do this with {names[0]}, and call it.", calls=calls)
    return Reply(
        f"These are {len(calls)} things to do; I call {' and '.join(names)} for all of them.",
        calls=calls,
    )


class _AskedWord(Struct, frozen=True):
    """The word or text that the user asks for as the answer."""

    text: str = ""
    """Empty: the user asks for none."""
    span: tuple[int, int] | None = None
    """Where the request names it."""


def _asked_word(request: str) -> _AskedWord:
    word = _WORD.search(request)
    if word is not None:
        return _AskedWord(word["word"], word.span())
    exactly = _EXACTLY.search(request)
    if exactly is not None:
        return _AskedWord(exactly["word"] or exactly["bare"], exactly.span())
    return _AskedWord()


def _report(results: list[str]) -> str:
    line = _first_line(results[-1])
    if len(results) == 1:
        return f"Done; the tool answered: {line}"
    return f"Done; {len(results)} tools answered, the last of them: {line}"


def _first_line(result: str) -> str:
    lines = output_of(result).strip().splitlines() or ["(no output)"]
    return lines[0].strip()[:_LINE_CHARS]


def _summary(view: AgentPrompt) -> str:
    last = "nothing yet"
    requests = _requests(view)
    if requests:
        # No backticks: the summary becomes part of the next request, and must not look like a
        # command in it.
        last = requests[-1].replace("`", "'")[:_LINE_CHARS]
    results = sum(message.role == "tool" for message in view.messages)
    text = (
        f"The user asked last: {last}\n"
        f"{results} tool results came in. Nothing else is known to the demo engine."
    )
    if "<summary>" not in view.request:
        return text
    analysis = f"The conversation has {len(view.messages)} messages."
    return f"<analysis>\n{analysis}\n</analysis>\n\n<summary>\n{text}\n</summary>"


def _requests(view: AgentPrompt) -> list[str]:
    """What the user asked for, oldest first, without the request for a summary."""
    texts = [
        without_additions(message.text)
        for message in view.messages
        if message.role == "user" and not _COMPACTION.search(message.text)
    ]
    asked = [text for text in texts if text]
    return asked or _TRANSCRIPT_USER.findall(view.request)


def _title(view: AgentPrompt) -> str:
    source = view.request
    session = _SESSION.search(source)
    if session is not None:
        source = session[1]
    words = re.findall(r"[\w'./-]+", source)[:6]
    return " ".join(words).rstrip(".,-")[:50] or "Demo"


def _least(schema: Schema) -> dict[str, Any]:
    value = instance({**schema, "type": "object"}, "")
    return value if isinstance(value, dict) else {}
