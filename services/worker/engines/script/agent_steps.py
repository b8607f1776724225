"""Finds what a request asks for, by rule, and makes the calls that do it. Pure.

Steps are commands in backticks, and files to read, write or edit."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from services.worker.engines.script.agent_prompt import Tool, output_of
from services.worker.engines.script.agent_tools import Role, call_arguments, find_tool

Kind: TypeAlias = Literal["shell", "read", "write", "edit"]


class Step(Struct, frozen=True):
    """One thing to do."""

    kind: Kind
    command: str = ""
    path: str = ""
    text: str = ""
    """Content to write, or the replacement of an edit."""
    old: str = ""


class ToolCall(Struct, frozen=True):
    """A call as the agent makes it."""

    name: str
    arguments: dict[str, Any]


_PATH = r"[\"'`]?(?P<path>[\w.~-]*/[\w./~-]*\w|[\w-]+\.\w+)[\"'`]?"
_QUOTED = r"(?P<q{0}>[\"'`])(?P<{0}>(?:(?!(?P=q{0}))[^\n])*)(?P=q{0})"
_THE_FILE = r"(?:me )?(?:the )?(?:contents? of )?(?:the |a )?(?:new )?(?:text )?(?:file )?(?:called |named )?"
_RULES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "edit",
        re.compile(
            rf"\b(?:replace|change) {_QUOTED.format('old')} (?:with|by|to|into) {_QUOTED.format('text')}"
            rf" in {_THE_FILE}{_PATH}",
            re.IGNORECASE,
        ),
    ),
    ("write", re.compile(rf"\bwrite {_QUOTED.format('text')} (?:in)?to {_THE_FILE}{_PATH}", re.IGNORECASE)),
    (
        "write",
        re.compile(
            rf"\b(?:write|create|make) {_THE_FILE}{_PATH} (?:with|containing|that (?:says|contains))"
            rf"(?: (?:the|exactly|exact|this|text|contents?|lines?|words?))*:? {_QUOTED.format('text')}",
            re.IGNORECASE,
        ),
    ),
    ("read", re.compile(rf"\b(?:read|open|show|print|view|look at) {_THE_FILE}{_PATH}", re.IGNORECASE)),
)
_FENCE = re.compile(r"```(?:sh|bash|shell|console)?\n(?P<command>.*?)\n?```", re.DOTALL)
_SPAN = re.compile(r"`(?P<command>[^`\n]+)`")
_ASKED_TO_RUN = re.compile(r"\b(?:run|runs|running|execute|command|commands|shell|terminal|bash)\b", re.IGNORECASE)
_COMMAND = re.compile(
    r"(?:awk|cargo|cat|cd|chmod|cp|curl|date|df|du|echo|env|false|find|git|go|grep|head|hostname|id|jq|kill|ls|make|mkdir"
    r"|mv|node|npm|npx|pip|printf|ps|pwd|pytest|python3?|rg|rm|sed|seq|sh|sleep|sort|stat|tail|tar|tee|test|touch|tr"
    r"|true|uname|uniq|wc|which|whoami|xargs)(?:\s|$)"
)
_IN_TURN = re.compile(
    r"\b(?:then|afterwards?|after that|one after (?:the other|another)|step by step)\b", re.IGNORECASE
)
_TOGETHER = re.compile(
    r"\b(?:parallel|simultaneous(?:ly)?|at once|in (?:one|a|1)(?: single)? (?:response|turn|message|go))\b", re.I
)


def find_steps(request: str, answer: tuple[int, int] | None = None) -> list[Step]:
    """What `request` asks for, in order; nothing inside the span `answer`, which is to be answered and not done."""
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


def make_calls(step: Step, tools: list[Tool], directory: str | None, results: Sequence[str] = ()) -> list[ToolCall]:
    """The calls that do `step` with these tools, in order; none if no tool can do it. `results`: of the first calls."""
    tool = find_tool(step.kind, tools)
    if tool is None:
        shell, patcher = find_tool("shell", tools), find_tool("patch", tools)
        if patcher is not None and (step.kind == "write" or (step.kind == "edit" and shell is not None)):
            return _patch_calls(step, patcher, shell, directory, results)
        return [_shell_call(shell, _as_command(step))] if shell is not None else []
    if step.kind == "shell":
        return [_shell_call(tool, step.command)]
    call = ToolCall(tool.name, call_arguments(tool, _file_values(step, directory)))
    reader = find_tool("read", tools) if step.kind == "edit" else None
    if reader is None:
        return [call]
    # Claude Code and opencode refuse to edit a file that was not read in the conversation.
    path: dict[Role, str] = {"path": _absolute(step.path, directory)}
    return [ToolCall(reader.name, call_arguments(reader, path)), call]


def _patch_calls(
    step: Step, patcher: Tool, shell: Tool | None, directory: str | None, results: Sequence[str]
) -> list[ToolCall]:
    """Calls of Codex's apply_patch. A patch holds whole lines, so that what is changed must be read first."""
    path = step.path
    if directory is not None and PurePosixPath(path).is_relative_to(directory):
        path = str(PurePosixPath(path).relative_to(directory))
    if step.kind == "write" or shell is None:
        return [_patch_call(patcher, f"*** Add File: {path}", [f"+{line}" for line in step.text.splitlines()])]
    content = output_of(results[0]) if results else ""
    line = next((line for line in content.splitlines() if step.old in line), step.old)
    change = ["@@", f"-{line}", f"+{line.replace(step.old, step.text)}"]
    return [
        _shell_call(shell, f"cat {shlex.quote(step.path)}"),
        _patch_call(patcher, f"*** Update File: {path}", change),
    ]


def _patch_call(tool: Tool, section: str, lines: list[str]) -> ToolCall:
    patch = "\n".join(["*** Begin Patch", section, *lines, "*** End Patch"])
    return ToolCall(tool.name, call_arguments(tool, {"patch": patch}))


def _shell_call(tool: Tool, command: str) -> ToolCall:
    return ToolCall(tool.name, call_arguments(tool, {"command": command, "description": "Run the requested command"}))


def _file_values(step: Step, directory: str | None) -> dict[Role, str]:
    values: dict[Role, str] = {"path": _absolute(step.path, directory)}
    if step.kind == "write":
        values["text"] = step.text + "\n"
    elif step.kind == "edit":
        values |= {"old": step.old, "new": step.text}
    return values


def _absolute(path: str, directory: str | None) -> str:
    return str(PurePosixPath(directory, path)) if directory else path


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
