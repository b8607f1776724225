"""`turnwire parse`: a model's raw output on stdin, the events that the parser makes of it on stdout.

For looking at a model's output that a harness did not like, and for turning it into a test vector.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from schemas.conversation import ToolSpec
from schemas.events import BlockEvent, FinishReason
from services.cli import bus_view
from services.parser import open_parser
from services.runtime.config_flags import parse_arguments


def main(argv: Sequence[str]) -> int:
    """Prints one line for each event; status 2 for an unknown family or unreadable tools."""
    parser = argparse.ArgumentParser(prog="turnwire parse", allow_abbrev=False, description=__doc__)
    parser.add_argument("--family", required=True, help="qwen3_coder, hermes …")
    parser.add_argument("--tools", type=Path, metavar="FILE", help="JSON list of tools, in any API's form")
    parser.add_argument("--in-reasoning", action="store_true", help="the prompt ended inside reasoning")
    parser.add_argument("--chunk", type=int, metavar="N", help="feed N characters at a time [default: all at once]")
    parser.add_argument("--finish", choices=[str(reason) for reason in FinishReason], default="stop")
    parser.add_argument("--json", action="store_true", help="events as JSON, one a line")
    arguments = parse_arguments(parser, argv)
    try:
        tools = read_tools(arguments.tools.read_bytes()) if arguments.tools else []
        machine = open_parser(arguments.family, tools=tools, in_reasoning=arguments.in_reasoning)
    except (OSError, ValueError) as error:
        print(f"turnwire parse: {error}", file=sys.stderr)
        return 2
    text = sys.stdin.read()
    step = arguments.chunk or max(len(text), 1)
    for start in range(0, len(text), step):
        _print(machine.feed(text[start : start + step]), arguments.json)
    _print(machine.finish(FinishReason(arguments.finish)), arguments.json)
    return 0


def read_tools(data: bytes) -> list[ToolSpec]:
    """Tools as the Messages, Responses or Chat API has them, or as `ToolSpec`. Raises ValueError."""
    try:
        listed = msgspec.json.decode(data, type=list[dict[str, Any]])
        return [_tool(one) for one in listed]
    except (msgspec.DecodeError, KeyError) as error:
        raise ValueError(f"no list of tools: {error}") from error


def _tool(given: dict[str, Any]) -> ToolSpec:
    one = given.get("function", given)
    schema = one.get("input_schema") or one.get("parameters") or one.get("schema") or {}
    return ToolSpec(one["name"], one.get("description", ""), schema)


def _print(events: Sequence[BlockEvent], as_json: bool) -> None:
    for event in events:
        print(msgspec.json.encode(event).decode() if as_json else bus_view.event(event))
