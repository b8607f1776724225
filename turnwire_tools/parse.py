"""`turnwire parse`: prints the events that the parser makes of a model's raw output.

Use it to inspect output that a client did not accept, and to turn output into a test vector.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from schemas.conversation import ToolSpec
from schemas.events import FinishReason, LoggedEvent
from services.cli.common import UsageError
from services.cli.registry import Command
from services.families import open_parser
from services.families.response_template import template_name
from services.runtime.config.base import Count
from services.runtime.config.names import nearest_file
from services.runtime.streams.turn_log import TurnLog
from turnwire_tools.dispatches import with_dispatches
from turnwire_tools.tap import bus_view


def parse(
    *,
    family: str | None = None,
    response_template: Path | None = None,
    tools: Path | None = None,
    in_reasoning: bool = False,
    chunk: Count | None = None,
    finish: Annotated[str, Parameter(choices=[str(reason) for reason in FinishReason])] = "stop",
    json: bool = False,
) -> int:
    """Reads a model's raw output from stdin and prints one line for each event of the parser.

    Args:
        family: Parser family, for example `qwen3_coder` or `hermes`.
        response_template: File with a `response_template` that describes the output, or a
            tokenizer_config.json with one, instead of a family.
        tools: File with the tools that the model could call: a JSON list, in the form of any API.
        in_reasoning: Start inside a reasoning block: the prompt ended with the family's opening
            tag, such as `<think>`.
        chunk: Characters to pass to the parser at a time; default: all at once.
        finish: Why the engine stopped generating. After `length`, for example, an open tool call
            ends as incomplete.
        json: Print events as JSON.
    """
    try:
        tool_specs = read_tools(_read(tools)) if tools else []
        if response_template is not None:
            described = template_name(_read(response_template).decode())
        if (family is None) == (response_template is None):
            raise ValueError("pass either --family or --response-template")
        machine = open_parser(family or described, tools=tool_specs, in_reasoning=in_reasoning)
    except (OSError, ValueError) as error:
        raise UsageError(error) from None
    text = sys.stdin.buffer.read().decode(errors="replace")
    step = chunk or max(len(text), 1)
    log = TurnLog()
    for start in range(0, len(text), step):
        _print(with_dispatches(machine.feed(text[start : start + step]), log), json)
    _print(with_dispatches(machine.finish(FinishReason(finish)), log), json)
    return 0


COMMAND = Command(parse)


def _read(file: Path) -> bytes:
    """The content of a file. Raises UsageError, OSError."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise UsageError(f'there is no file "{file}"{nearest_file(str(file))}') from None


def read_tools(data: bytes) -> list[ToolSpec]:
    """Tools in the form of the Messages, Responses or Chat API, or of `ToolSpec`. Raises
    ValueError."""
    try:
        listed = msgspec.json.decode(data, type=list[dict[str, Any]])
        return [_tool(tool) for tool in listed]
    except (msgspec.DecodeError, KeyError) as error:
        raise ValueError(f"no list of tools: {error}") from error


def _tool(entry: dict[str, Any]) -> ToolSpec:
    tool = entry.get("function", entry)
    schema = tool.get("input_schema") or tool.get("parameters") or tool.get("schema") or {}
    return ToolSpec(tool["name"], tool.get("description", ""), schema)


def _print(events: Iterable[LoggedEvent], as_json: bool) -> None:
    for event in events:
        if as_json:
            print(msgspec.json.encode(event).decode())
        else:
            print(bus_view.describe(event))
