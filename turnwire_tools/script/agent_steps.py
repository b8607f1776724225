"""Finds what a request asks for, by rule, and makes the calls that do it, or the text of an edit.
Pure.

Steps are commands in backticks, and files to read, write or edit."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from msgspec import Struct

from turnwire_tools.script.agent_prompt import Prompt, Tool, output_of
from turnwire_tools.script.agent_tools import Role, ToolCall, find_tool, make_call

Kind: TypeAlias = Literal["shell", "read", "write", "edit"]


class Step(Struct, frozen=True):
    """One thing to do."""

    kind: Kind
    command: str = ""
    path: str = ""
    text: str = ""
    """Content to write, or the replacement of an edit."""
    old: str = ""


_PATH = r"[\"'`]?(?P<path>[\w.~-]*/[\w./~-]*\w|[\w-]+\.\w+)[\"'`]?"
_QUOTED = r"(?P<q{0}>[\"'`])(?P<{0}>(?:(?!(?P=q{0}))[^\n])*)(?P=q{0})"
_THE_FILE = (
    r"(?:me )?(?:the )?(?:contents? of )?(?:the |a )?(?:new )?(?:text )?(?:file )?(?:called "
    r"|named )?"
)
_RULES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "edit",
        re.compile(
            rf"\b(?:replace|change) {_QUOTED.format('old')} (?:with|by|to|into) "
            rf"{_QUOTED.format('text')}"
            rf" in {_THE_FILE}{_PATH}",
            re.IGNORECASE,
        ),
    ),
    (
        "write",
        re.compile(
            rf"\bwrite {_QUOTED.format('text')} (?:in)?to {_THE_FILE}{_PATH}", re.IGNORECASE
        ),
    ),
    (
        "write",
        re.compile(
            rf"\b(?:write|create|make) {_THE_FILE}{_PATH} (?:with|containing|that "
            r"(?:says|contains))"
            r"(?: (?:the|exactly|exact|this|text|contents?|lines?|words?))*:? "
            rf"{_QUOTED.format('text')}",
            re.IGNORECASE,
        ),
    ),
    (
        "read",
        re.compile(rf"\b(?:read|open|show|print|view|look at) {_THE_FILE}{_PATH}", re.IGNORECASE),
    ),
)
_FENCE = re.compile(r"```(?:sh|bash|shell|console)?\n(?P<command>.*?)\n?```", re.DOTALL)
_SPAN = re.compile(r"`(?P<command>[^`\n]+)`")
_ASKED_TO_RUN = re.compile(
    r"\b(?:run|runs|running|execute|command|commands|shell|terminal|bash)\b", re.IGNORECASE
)
_COMMAND = re.compile(
    r"(?:awk|cargo|cat|cd|chmod|cp|curl|date|df|du|echo|env|false|find|git|go|grep|head|hostname|id|jq|kill|ls|make|mkdir"
    r"|mv|node|npm|npx|pip|printf|ps|pwd|pytest|python3?|rg|rm|sed|seq|sh|sleep|sort|stat|tail|tar|tee|test|touch|tr"
    r"|true|uname|uniq|wc|which|whoami|xargs)(?:\s|$)"
)
_EDIT_FORMS = (("*SEARCH/REPLACE", "blocks"), ("diff -U0", "diff"), ("*file listing*", "listing"))
"""How aider's system prompt names each of its formats of edits."""
_IN_TURN = re.compile(
    r"\b(?:then|afterwards?|after that|one after (?:the other|another)|step by step)\b",
    re.IGNORECASE,
)
_TOGETHER = re.compile(
    r"\b(?:parallel|simultaneous(?:ly)?|at once|in (?:one|a|1)(?: single)? "
    r"(?:response|turn|message|go))\b",
    re.I,
)


def find_steps(request: str, answer: tuple[int, int] | None = None) -> list[Step]:
    """What `request` asks for, in order; nothing inside the span `answer`, which is to be answered
    and not done."""
    taken = [answer] if answer else []
    found: list[tuple[int, Step]] = []
    for kind, rule in _RULES:
        for hit in rule.finditer(request):
            if _free(hit.span(), taken):
                text, old = (hit.groupdict().get(name) or "" for name in ("text", "old"))
                found.append((hit.start(), Step(kind, path=hit["path"], text=text, old=old)))
    asked = _ASKED_TO_RUN.search(request) is not None
    for pattern in (_FENCE, _SPAN):
        for hit in pattern.finditer(request):
            command = hit["command"].strip()
            if command and (asked or _COMMAND.match(command)) and _free(hit.span(), taken):
                found.append((hit.start(), Step("shell", command=command)))
    return [step for _, step in sorted(found, key=lambda item: item[0])]


def together(request: str) -> bool:
    """Whether several steps go into one turn: yes, unless the request puts them in an order."""
    return _TOGETHER.search(request) is not None or _IN_TURN.search(request) is None


def make_calls(
    step: Step, tools: list[Tool], directory: str | None, results: Sequence[str] = ()
) -> list[ToolCall]:
    """The calls that do `step` with these tools, in order; none if no tool can do it. `results`: of
    the first calls."""
    tool, shell, patcher = (find_tool(kind, tools) for kind in (step.kind, "shell", "patch"))
    if (
        tool is None
        and patcher is not None
        and (step.kind == "write" or (step.kind == "edit" and shell is not None))
    ):
        return _patch_calls(step, patcher, shell, directory, results)
    if tool is None or step.kind == "shell":
        return [_shell_call(shell, _as_command(step))] if shell is not None else []
    values: dict[Role, str] = {
        "path": str(PurePosixPath(directory, step.path)) if directory else step.path
    }
    reader = find_tool("read", tools) if step.kind == "edit" else None
    # Claude Code and opencode refuse to edit a file that was not read in the conversation.
    calls = [] if reader is None else [make_call(reader, values)]
    if step.kind == "write":
        values["text"] = step.text + "\n"
    elif step.kind == "edit":
        values |= {"old": step.old, "new": step.text}
    return [*calls, make_call(tool, values)]


def _patch_calls(
    step: Step, patcher: Tool, shell: Tool | None, directory: str | None, results: Sequence[str]
) -> list[ToolCall]:
    """Calls of Codex's apply_patch. A patch holds whole lines, so that what is changed must be read
    first."""
    path = step.path
    if directory is not None and PurePosixPath(path).is_relative_to(directory):
        path = str(PurePosixPath(path).relative_to(directory))
    if step.kind == "write" or shell is None:
        return [
            _patch_call(
                patcher, f"*** Add File: {path}", [f"+{line}" for line in step.text.splitlines()]
            )
        ]
    content = output_of(results[0]) if results else ""
    line = next((line for line in content.splitlines() if step.old in line), step.old)
    change = ["@@", f"-{line}", f"+{line.replace(step.old, step.text)}"]
    return [
        _shell_call(shell, f"cat {shlex.quote(step.path)}"),
        _patch_call(patcher, f"*** Update File: {path}", change),
    ]


def _patch_call(tool: Tool, section: str, lines: list[str]) -> ToolCall:
    return make_call(
        tool, {"patch": "\n".join(["*** Begin Patch", section, *lines, "*** End Patch"])}
    )


def _shell_call(tool: Tool, command: str) -> ToolCall:
    return make_call(tool, {"command": command, "description": "Run the requested command"})


def _free(span: tuple[int, int], taken: list[tuple[int, int]]) -> bool:
    if any(span[0] < end and start < span[1] for start, end in taken):
        return False
    taken.append(span)
    return True


def _as_command(step: Step) -> str:
    """A file step for a harness that has a shell and no file tools."""
    if step.kind == "read":
        return f"cat {shlex.quote(step.path)}"
    if step.kind == "write":
        return f"printf '%s\\n' {shlex.quote(step.text)} > {shlex.quote(step.path)}"
    if step.kind == "edit":
        quoted = [re.sub(r"([/\\&.*\[\]^$])", r"\\\1", part) for part in (step.old, step.text)]
        return f"sed -i {shlex.quote('s/{}/{}/g'.format(*quoted))} {shlex.quote(step.path)}"
    return step.command


def edits_as_text(steps: Sequence[Step], view: Prompt) -> str:
    """The steps that change files, for a client that offers no tools and reads edits from the
    answer (aider): in the format that the prompt asks for; empty if it asks for none or nothing
    changes."""
    rules = "".join(message.text for message in view.messages if message.role == "system")
    form = next((form for words, form in _EDIT_FORMS if words in rules), None)
    changes = [] if form is None else [step for step in steps if step.kind in ("write", "edit")]
    return "\n\n".join(_written(step, str(form), _contents(step.path, view)) for step in changes)


def _written(step: Step, form: str, before: str) -> str:
    if step.kind == "write":
        old, new = "", step.text
    elif form == "listing":
        old, new = before, before.replace(step.old, step.text)
    else:
        old = next((line for line in before.splitlines() if step.old in line), step.old)
        new = old.replace(step.old, step.text)
    if form == "listing":
        return f"{step.path}\n```\n{new}\n```"
    if form == "blocks":
        return (
            f"{step.path}\n```\n<<<<<<< SEARCH\n{old + chr(10) if old else ''}=======\n{new}\n"
            ">>>>>>> REPLACE\n```"
        )
    source = step.path if old else "/dev/null"
    removed = [f"-{line}" for line in old.splitlines()]
    added = [f"+{line}" for line in new.splitlines()]
    lines = [f"--- {source}", f"+++ {step.path}", "@@ ... @@", *removed, *added]
    return "```diff\n" + "\n".join(lines) + "\n```"


def _contents(path: str, view: Prompt) -> str:
    """The file as the user's messages show it last: its name on a line, then its text in a
    fence."""
    shown = re.compile(
        rf"^{re.escape(path)}\n(?P<fence>`{{3,}})\w*\n(?P<text>.*?)\n?^(?P=fence)$",
        re.DOTALL | re.MULTILINE,
    )
    found = [
        hit["text"]
        for message in view.messages
        if message.role == "user"
        for hit in shown.finditer(message.text)
    ]
    return found[-1] if found else ""
