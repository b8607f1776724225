"""The tools of each harness, and a session of the scripted agent, with output that the family's own
parser reads back."""

import json
from typing import Any

from schemas.conversation import OutputFormat, ToolSpec
from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.families import Family, family, open_parser
from turnwire_tools.script.agent import act

LOOP = (
    "Use your shell tool to run exactly this command and nothing else: `echo ok-1 > proof.txt`. "
    "After it succeeded, answer with the single word DONE."
)
PARALLEL = (
    "In one single response make three shell tool calls in parallel, exactly these commands: `echo 1 > p1.txt` , "
    "`echo 2 > p2.txt` , `echo 3 > p3.txt`. After all succeeded, answer with the single word DONE."
)
FOLLOW = "Now use your shell tool to run exactly this command: `echo 2 > follow.txt`. Then answer with the single word DONE."
SYSTEM = "You are an agent. Run tests with `make test`, read `README.md` first, and reply with `NO_REPLY` when idle."
REMINDER = (
    '<system-reminder>\nUse `git commit -m x` and write "a" to /etc/b.txt.\n</system-reminder>\n'
)


def tool(name: str, required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    described = {
        key: value if isinstance(value, dict) else {"type": value}
        for key, value in properties.items()
    }
    schema = {"type": "object", "properties": described, "required": list(required)}
    description = 'Does it. Example: {"name": "fake", "parameters": {"x": 1}} and `rm -rf /`.'
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


def strings(name: str, *required: str, **more: Any) -> dict[str, Any]:
    """A tool whose required arguments are strings."""
    return tool(name, required, **dict.fromkeys(required, "string"), **more)


def array(**items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


CLAUDE = [
    strings("Agent", "prompt"),
    strings("Bash", "command", timeout="number", description="string"),
    strings("Edit", "file_path", "old_string", "new_string"),
    strings("Read", "file_path", offset="integer"),
    strings("Write", "file_path", "content"),
]
CODEX = [
    strings("exec_command", "cmd", workdir="string", yield_time_ms="number"),
    tool("write_stdin", ("session_id",), session_id="number", chars="string"),
]
PATCHING = [*CODEX, strings("apply_patch", "input")]
"""Codex with a profile: the tool is freeform, and the model is told of one string."""
OPENCODE = [
    strings("bash", "command", description="string", workdir="string"),
    strings("edit", "filePath", "oldString", "newString"),
    strings("read", "filePath"),
    strings("write", "content", "filePath"),
]
_EDITS = array(type="object", properties={"oldText": {}, "newText": {}})
OPENCLAW = [
    tool("edit", ("path", "edits"), path="string", edits=_EDITS),
    strings("exec", "command", background="boolean"),
    strings("process", "action"),
    strings("read", "path"),
]
_FILES = array(type="object", properties={"path": {}, "start_line": {}}, required=["path"])
_OLD_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
CLINE = [
    tool("read_files", ("files",), files=_FILES),
    tool("search_codebase", ("queries",), queries=array(type="string")),
    tool("run_commands", ("commands",), commands=array(type="string")),
    strings("editor", "path", "new_text", old_text=_OLD_TEXT, insert_line="integer"),
]
UNKNOWN = [
    tool("launch", ("script_line", "cmd"), script_line="integer", cmd="string"),
    strings("view_source", "target_file"),
    strings("alter", "file", "search", "replace"),
    strings("store", "filename", "contents"),
]
"""Names that no client has: the schemas must do."""
SHELL = [tool("shell", ("command",), command=array(type="string"))]


class Session:
    """A conversation with the agent, as a harness holds it."""

    def __init__(
        self, template: Any, tools: list[dict[str, Any]], kind: str = "qwen3_coder", **options: Any
    ) -> None:
        self._template = template
        self._tools = tools
        self._options = options
        self.family: Family = family(kind)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]

    def user(self, text: str) -> "Session":
        self.messages.append({"role": "user", "content": text})
        return self

    def prompt(self) -> str:
        text: str = self._template.apply_chat_template(
            self.messages,
            tools=self._tools or None,
            tokenize=False,
            add_generation_prompt=True,
            **self._options,
        )
        return text

    def turn(
        self, form: OutputFormat | None = None
    ) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
        """(reasoning, text, calls) of the agent's next turn, which becomes part of the
        conversation."""
        prompt = self.prompt()
        output = act(prompt, self.family, form)
        specs = [
            ToolSpec(t["function"]["name"], "", t["function"]["parameters"]) for t in self._tools
        ]
        parser = open_parser(
            self.family.name, tools=specs, in_reasoning=self.family.opens_reasoning(prompt[-200:])
        )
        events = [*parser.feed(output), *parser.finish(FinishReason.STOP)]
        starts = [event for event in events if isinstance(event, BlockStart)]
        texts = {start.block: "" for start in starts}
        for event in events:
            if isinstance(event, Delta):
                texts[event.block] += event.text
        assert all(event.complete for event in events if isinstance(event, BlockStop))
        said = {
            kind: "".join(texts[s.block] for s in starts if s.kind == kind)
            for kind in ("reasoning", "text")
        }
        calls = [
            (start.name or "", json.loads(texts[start.block]))
            for start in starts
            if start.kind == "tool_use"
        ]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": said["text"],
            "reasoning_content": said["reasoning"],
        }
        if calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls
            ]
        self.messages.append(message)
        return said["reasoning"], said["text"], calls

    def results(self, *texts: str) -> "Session":
        self.messages += [{"role": "tool", "content": text} for text in texts]
        return self
