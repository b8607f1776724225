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
from turnwire_tools.script.agent_prompt import Prompt, output_of, read_prompt, without_additions
from turnwire_tools.script.agent_schema import instance
from turnwire_tools.script.agent_steps import edits_as_text, find_steps, make_calls, together
from turnwire_tools.script.agent_tools import ToolCall, find_tool, make_call

ABOUT = (
    "This is Turnwire's scripted demo engine: a few rules, and no model behind them. Put a shell "
    "command in backticks, "
    "or ask for a file to be read, written or edited, and it makes the tool calls a model would "
    "make."
)


class Reply(Struct, frozen=True):
    """The agent's next output: a thought, and then either text or calls."""

    thought: str
    text: str = ""
    calls: list[ToolCall] = []


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


def decide(view: Prompt, form: OutputFormat | None = None) -> Reply:
    """The next reply, whatever the family."""
    if form is not None:
        value = instance(
            form.schema or {"properties": {"answer": {}}, "required": ["answer"]}, _title(view)
        )
        return Reply("The answer must have a given form.", json.dumps(value, ensure_ascii=False))
    if _COMPACTION.search(view.request):
        return Reply("I am asked for a summary, and for no tool.", _summary(view))
    if not view.tools and _TITLE.search(
        view.request + "".join(m.text for m in view.messages if m.role == "system")
    ):
        return Reply("I am asked for a title.", _title(view))
    answer, span = _asked_word(view.request)
    steps = find_steps(view.request, span)
    calls: list[ToolCall] = []
    for step in steps:
        calls += make_calls(step, view.tools, view.directory, view.results[len(calls) :])
    todo = calls[len(view.results) :]
    if todo:
        at_once = together(view.request) and all(step.kind != "edit" for step in steps)
        return _calling(todo if at_once else todo[:1])
    if view.results:
        thought, text = (
            f"The tool answered: {_first_line(view.results[-1])}",
            answer or _report(view.results),
        )
        return (
            Reply(thought, text) if len(view.results) > len(calls) else _ending(thought, text, view)
        )
    if not view.tools and (edits := edits_as_text(steps, view)):
        return Reply(
            "I have no tools, and write the changes into the answer.",
            f"{edits}\n\n{answer}".rstrip(),
        )
    if answer and not steps:
        return _ending("I am asked for this word and for nothing else.", answer, view)
    if steps and not calls:
        return Reply(
            "I am asked for work, and have no tool that does it.",
            f"No tool for this is offered. {ABOUT}",
        )
    return _ending("There is nothing in this request that I have a rule for.", ABOUT, view)


def compose(reply: Reply, view: Prompt, family: Family) -> str:
    """The reply in the family's form, from where the prompt ends: before, inside or after the
    reasoning, or after the opening of a forced call. Where the prompt is not a chat, the bare
    text."""
    if not view.chat:
        return reply.text
    calls = [family.style.write_call(call.name, call.arguments) for call in reply.calls]
    body = "\n".join(calls) or reply.text
    reasoning = family.style.write_reasoning(reply.thought) if family.style.reasoning else ""
    opening = view.opening
    if not opening.strip():
        return reasoning + body
    if reasoning and reasoning.startswith(opening):
        return reasoning[len(opening) :] + body
    forced = [
        body,
        *(family.style.write_call(tool.name, _least(tool.schema)) for tool in view.tools),
    ]
    for text in forced:
        for shared in range(min(len(opening), len(text)), _OVERLAP_CHARS - 1, -1):
            if opening.endswith(text[:shared]):
                return text[shared:]
    return body


def _ending(thought: str, text: str, view: Prompt) -> Reply:
    """Ends the work: with the tool for that, where the client has one and asks again until it is
    called."""
    tool = find_tool("finish", view.tools)
    if tool is None:
        return Reply(thought, text)
    return Reply(thought, calls=[make_call(tool, {"answer": text})])


def _calling(calls: list[ToolCall]) -> Reply:
    names = sorted({call.name for call in calls})
    if len(calls) == 1:
        return Reply(f"I am asked to do this with {names[0]}, and call it.", calls=calls)
    return Reply(
        f"These are {len(calls)} things to do; I call {' and '.join(names)} for all of them.",
        calls=calls,
    )


def _asked_word(request: str) -> tuple[str, tuple[int, int] | None]:
    """The word or text that the user asks for as the answer, and where the request names it."""
    for pattern in (_WORD, _EXACTLY):
        if found := pattern.search(request):
            return found["word"] or found["bare"], found.span()
    return "", None


def _report(results: list[str]) -> str:
    line = _first_line(results[-1])
    if len(results) == 1:
        return f"Done; the tool answered: {line}"
    return f"Done; {len(results)} tools answered, the last of them: {line}"


def _first_line(result: str) -> str:
    line = next(
        (text for line in output_of(result).splitlines() if (text := line.strip())), "(no output)"
    )
    return line[:_LINE_CHARS]


def _summary(view: Prompt) -> str:
    texts = [m.text for m in view.messages if m.role == "user" and not _COMPACTION.search(m.text)]
    asked = [text for text in map(without_additions, texts) if text] or _TRANSCRIPT_USER.findall(
        view.request
    )
    results = sum(message.role == "tool" for message in view.messages)
    # No backticks: the summary becomes part of the next request, and must not look like a command
    # in it.
    last = asked[-1].replace("`", "'")[:_LINE_CHARS] if asked else "nothing yet"
    text = (
        f"The user asked last: {last}\n"
        f"{results} tool results came in. Nothing else is known to the demo engine."
    )
    if "<summary>" not in view.request:
        return text
    analysis = f"The conversation has {len(view.messages)} messages."
    return f"<analysis>\n{analysis}\n</analysis>\n\n<summary>\n{text}\n</summary>"


def _title(view: Prompt) -> str:
    source = found[1] if (found := _SESSION.search(view.request)) else view.request
    words = re.findall(r"[\w'./-]+", source)[:6]
    return " ".join(words).rstrip(".,-")[:50] or "Demo"


def _least(schema: dict[str, Any]) -> dict[str, Any]:
    value = instance({**schema, "type": "object"}, "")
    return value if isinstance(value, dict) else {}
