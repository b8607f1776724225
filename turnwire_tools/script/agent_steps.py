"""Finds what a request asks for, by rule, and makes the calls that do it, or the text of an edit.
Pure.

Steps are commands in backticks, and files to read, write or edit."""

import re
import shlex
from collections.abc import Sequence
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from msgspec import Struct

from turnwire_tools.script.agent_prompt import AgentPrompt, OfferedTool, output_of
from turnwire_tools.script.agent_tools import AgentCall, Role, find_tool, make_call

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
    taken = _Spans()
    if answer is not None:
        taken.take(answer)
    placed: list[tuple[int, Step]] = []
    for kind, rule in _RULES:
        for hit in rule.finditer(request):
            if taken.take(hit.span()):
                placed.append((hit.start(), _file_step(kind, hit)))

    is_asked = bool(_ASKED_TO_RUN.search(request))
    for pattern in (_FENCE, _SPAN):
        for hit in pattern.finditer(request):
            command = hit["command"].strip()
            is_command = is_asked or bool(_COMMAND.match(command))
            if command and is_command and taken.take(hit.span()):
                placed.append((hit.start(), Step("shell", command=command)))

    placed.sort(key=itemgetter(0))
    return [step for _, step in placed]


class _Spans:
    """The parts of a request that belong to a step."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int]] = []

    def take(self, span: tuple[int, int]) -> bool:
        """Takes a part; returns whether it was free."""
        first, last = span
        if any(first < end and start < last for start, end in self._taken):
            return False
        self._taken.append(span)
        return True


def _file_step(kind: Kind, hit: re.Match[str]) -> Step:
    texts = hit.groupdict()
    return Step(kind, path=hit["path"], text=texts.get("text") or "", old=texts.get("old") or "")


def together(request: str) -> bool:
    """Whether several steps go into one turn: yes, unless the request puts them in an order."""
    if _TOGETHER.search(request):
        return True
    return not _IN_TURN.search(request)


def make_calls(
    step: Step, tools: list[OfferedTool], directory: str, results: Sequence[str] = ()
) -> list[AgentCall]:
    """The calls that do `step` with these tools, in order; none if no tool can do it. `results`: of
    the first calls."""
    tool = find_tool(step.kind, tools)
    shell = find_tool("shell", tools)
    if tool is not None and step.kind != "shell":
        return _file_calls(step, tool, tools, directory)

    patcher = find_tool("patch", tools)
    if patcher is not None and step.kind == "write":
        return [_adding_call(step, patcher, directory)]
    if patcher is not None and step.kind == "edit" and shell is not None:
        return _editing_calls(step, patcher, shell, directory, results)
    return [] if shell is None else [_shell_call(shell, _as_command(step))]


def _file_calls(
    step: Step, tool: OfferedTool, tools: list[OfferedTool], directory: str
) -> list[AgentCall]:
    """Calls of the harness's own tools for files."""
    path = step.path
    if directory:
        path = str(PurePosixPath(directory, path))
    values: dict[Role, str] = {"path": path}
    calls = []
    match step.kind:
        case "write":
            values["text"] = step.text + "\n"
        case "edit":
            # Claude Code and opencode refuse to edit a file that was not read in the conversation.
            reader = find_tool("read", tools)
            if reader is not None:
                calls.append(make_call(reader, values))
            values |= {"old": step.old, "new": step.text}
    return [*calls, make_call(tool, values)]


def _adding_call(step: Step, patcher: OfferedTool, directory: str) -> AgentCall:
    """Codex's apply_patch with a new file."""
    lines = [f"+{line}" for line in step.text.splitlines()]
    return _patch_call(patcher, f"*** Add File: {_relative(step.path, directory)}", lines)


def _editing_calls(
    step: Step, patcher: OfferedTool, shell: OfferedTool, directory: str, results: Sequence[str]
) -> list[AgentCall]:
    """Codex's apply_patch with a change. A patch holds whole lines, so that what is changed must be
    read first."""
    content = output_of(results[0]) if results else ""
    line = _line_with(step.old, content)
    change = ["@@", f"-{line}", f"+{line.replace(step.old, step.text)}"]
    return [
        _shell_call(shell, f"cat {shlex.quote(step.path)}"),
        _patch_call(patcher, f"*** Update File: {_relative(step.path, directory)}", change),
    ]


def _relative(path: str, directory: str) -> str:
    if not directory or not PurePosixPath(path).is_relative_to(directory):
        return path
    return str(PurePosixPath(path).relative_to(directory))


def _line_with(text: str, content: str) -> str:
    """The first line of a file that has this text; the text alone where none is known."""
    return next((line for line in content.splitlines() if text in line), text)


def _patch_call(tool: OfferedTool, section: str, lines: list[str]) -> AgentCall:
    return make_call(
        tool, {"patch": "\n".join(["*** Begin Patch", section, *lines, "*** End Patch"])}
    )


def _shell_call(tool: OfferedTool, command: str) -> AgentCall:
    return make_call(tool, {"command": command, "description": "Run the requested command"})


def _as_command(step: Step) -> str:
    """A file step for a harness that has a shell and no file tools."""
    if step.kind == "read":
        return f"cat {shlex.quote(step.path)}"
    if step.kind == "write":
        return f"printf '%s\\n' {shlex.quote(step.text)} > {shlex.quote(step.path)}"
    if step.kind == "edit":
        program = f"s/{_for_sed(step.old)}/{_for_sed(step.text)}/g"
        return f"sed -i {shlex.quote(program)} {shlex.quote(step.path)}"
    return step.command


def _for_sed(text: str) -> str:
    return re.sub(r"([/\\&.*\[\]^$])", r"\\\1", text)


def edits_as_text(steps: Sequence[Step], view: AgentPrompt) -> str:
    """The steps that change files, for a client that offers no tools and reads edits from the
    answer (aider): in the format that the prompt asks for; empty if it asks for none or nothing
    changes."""
    rules = "".join(message.text for message in view.messages if message.role == "system")
    form = _edit_form(rules)
    if not form:
        return ""
    changes = [step for step in steps if step.kind in ("write", "edit")]
    return "\n\n".join(_written(step, form, _contents(step.path, view)) for step in changes)


def _edit_form(rules: str) -> str:
    """The format of edits that a system prompt asks for; empty if it asks for none."""
    return next((form for words, form in _EDIT_FORMS if words in rules), "")


def _written(step: Step, form: str, before: str) -> str:
    """A change in one of the formats. `before`: the file."""
    if form == "listing":
        content = step.text
        if step.kind == "edit":
            content = before.replace(step.old, step.text)
        return f"{step.path}\n```\n{content}\n```"

    old = ""
    new = step.text
    if step.kind == "edit":
        old = _line_with(step.old, before)
        new = old.replace(step.old, step.text)
    if form == "blocks":
        return _as_block(step.path, old, new)
    return _as_diff(step.path, old, new)


def _as_block(path: str, old: str, new: str) -> str:
    searched = f"{old}\n" if old else ""
    return f"{path}\n```\n<<<<<<< SEARCH\n{searched}=======\n{new}\n>>>>>>> REPLACE\n```"


def _as_diff(path: str, old: str, new: str) -> str:
    source = path if old else "/dev/null"
    removed = [f"-{line}" for line in old.splitlines()]
    added = [f"+{line}" for line in new.splitlines()]
    lines = [f"--- {source}", f"+++ {path}", "@@ ... @@", *removed, *added]
    return "```diff\n" + "\n".join(lines) + "\n```"


def _contents(path: str, view: AgentPrompt) -> str:
    """The file as the user's messages show it last: its name on a line, then its text in a
    fence."""
    shown = re.compile(
        rf"^{re.escape(path)}\n(?P<fence>`{{3,}})\w*\n(?P<text>.*?)\n?^(?P=fence)$",
        re.DOTALL | re.MULTILINE,
    )
    content = ""
    for message in view.messages:
        if message.role == "user":
            for hit in shown.finditer(message.text):
                content = hit["text"]
    return content
