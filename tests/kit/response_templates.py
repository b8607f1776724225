"""The response templates that tests use: those of the installed trl, and our own for every kind of
content."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_CONSTANTS = ("_LFM2_2_5", "_XML_INLINE")


@cache
def of_trl() -> dict[str, dict[str, Any]]:
    """trl's templates by name; empty if it is not installed. Its module needs packages that its
    wheel's templates do not, so only the assignments of templates run."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        return {}
    file = Path(found.origin).parent / "chat_template_utils.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if _is_template(node)]
    scope: dict[str, Any] = {"_SUPPORTS_PARSE_RESPONSE_TOOLS": True}
    exec(compile(tree, "chat_template_utils.py", "exec"), scope)
    return {
        name.removesuffix("_template"): value
        for name, value in scope.items()
        if name.endswith("_template") and isinstance(value, dict)
    }


def _is_template(node: ast.stmt) -> bool:
    """Whether a statement assigns a template, or makes a part of one."""
    if not isinstance(node, ast.Assign | ast.For):
        return False
    if isinstance(node, ast.For):
        names = [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
        return any(name.startswith(_CONSTANTS) for name in names)
    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    if any(name.startswith(_CONSTANTS) for name in names):
        return True
    return isinstance(node.value, ast.Dict) and names[0].endswith("_template")


_FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
OWN: dict[str, dict[str, Any]] = {
    "brackets": {
        "version": 1,
        "start_anchor": "[BOT]",
        "fields": {
            "thinking": {
                "open": ["<think>", "<seed:think>"],
                "close": ["</think>", "</seed:think>"],
            },
            "tool_calls": {
                "open_pattern": r"\[CALL (?P<name>[\w.-]+)\]\s*",
                "close_pattern": r"\s*\[/CALL\]\s*",
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"\[ARG (?P<key>\w+)\](?P<value>[\s\S]*?)\[/ARG\]"},
                "repeats": True,
                "transform": _FUNCTION,
            },
            "content": {"close": "[EOT]"},
        },
    },
    "python": {
        "start_anchor": "[BOT]",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open": "[TOOLS]",
                "close": "[/TOOLS]",
                "content": "python-call-list",
                "transform": {
                    "type": "function",
                    "function": {"name": "{name}", "arguments": "{arguments}"},
                },
                "transform_each": True,
            },
            "content": {"close": "[EOT]"},
        },
    },
    "list": {
        "start_anchor": "◁bot▷",
        "fields": {
            "refusal": {"open": "◁no▷", "close": "◁/no▷"},
            "reasoning_content": {"open": "◁think▷", "close": "◁/think▷"},
            "tool_calls": {
                "open": "◁calls▷",
                "close": "◁/calls▷",
                "content": "json",
                "transform": {
                    "type": "function",
                    "function": {"name": "{tool}", "arguments": "{input}"},
                },
                "transform_each": True,
            },
            "content": {"close": "◁end▷"},
        },
    },
    "renamed": {
        "start_anchor_pattern": "<bot>",
        "fields": {
            "thinking": {
                "open": "<scratchpad>",
                "close": "</scratchpad>",
                "repeats": True,
                "join": "\n",
            },
            "tool_calls": {
                "open": "<action>",
                "close_pattern": "</action>",
                "content": "json",
                "repeats": True,
                "transform": {
                    "type": "function",
                    "function": {"name": "{content.tool}", "arguments": "{content.input}"},
                },
            },
            "content": {"open": "<reply>", "close": "</reply>"},
        },
    },
}


def simple(**changes: Any) -> dict[str, Any]:
    """A template with a field of text; `changes` are keys of the template (None: none) or
    fields."""
    source: dict[str, Any] = {"start_anchor": "<bot>", "fields": {"content": {}}}
    for key, value in changes.items():
        if key.startswith(("start_anchor", "version", "schema")):
            source[key] = value
        else:
            source["fields"][key] = value
    return {key: value for key, value in source.items() if value is not None}


def tagged(**changes: Any) -> dict[str, Any]:
    """A template with calls in tags; `changes` are keys of their field."""
    calls = {
        "open_pattern": r"<call (?P<name>[^>]+)>",
        "close": "</call>",
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</\w+>"},
        "transform": {"name": "{name}", "arguments": "{content}"},
    }
    return simple(tool_calls={**calls, **changes})
