"""Makes requests in the form in which Codex sends them to the Responses API, from a seed.

The fixture has the parts of a request of Codex 0.169, in its order: instructions as a developer's
message, skills, the project's rules and the environment as messages of their own; its tools, with
`apply_patch` as a freeform tool with a grammar, a tool search and a web search among them; sealed
reasoning and calls in the history; `include`, cache key and client metadata. The words are our own.
`plain` leaves out what other servers refuse: tools that are not functions, their calls, and sealed
reasoning. `turnwire_tools.clients` writes other bytes: it knows neither Codex's order of fields nor
its metadata.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from bench.prompts import NUMBER, prose, schema

INSTRUCTION_BYTES = 14_000
SKILLS_BYTES = 9_000
RULES_BYTES = 5_000
OUTPUT_BYTES = (400, 6_000)
HISTORY_BYTES = 180_000
"""With instructions and tools, about 52,000 tokens of the demo model's tokenizer."""
SESSION = "01a20000-0000-7000-8000-000000000000"
ASK = "Please go on with the next step"
FUNCTIONS = (
    "exec_command",
    "write_stdin",
    "request_user_input",
    "view_image",
    "get_goal",
    "create_goal",
    "update_goal",
)
GRAMMAR = """start: "*** Begin Patch" LF change+ "*** End Patch" LF?
change: add | remove | update
add: "*** Add File: " NAME LF ("+" TEXT LF)+
remove: "*** Delete File: " NAME LF
update: "*** Update File: " NAME LF (("+" | "-" | " ") TEXT LF)+
NAME: /[^\\n]+/
TEXT: /[^\\n]*/
LF: "\\n"
"""

Body = dict[str, Any]


def codex_body(
    model: str, play: str, *, plain: bool, head: bool, seed: int = 0
) -> Callable[[int], bytes]:
    """Returns the body of the n-th request: another last message of one session; with `head`, other
    first words."""
    source = random.Random(f"codex {seed if head else 0}")
    first = f"Session {NUMBER.decode()}. " if head else ""
    body: Body = {
        "model": model,
        "stream": True,
        "input": [
            _message("developer", first + prose(source, INSTRUCTION_BYTES)),
            _message(
                "developer",
                f"<skills_instructions>\n{prose(source, SKILLS_BYTES)}\n</skills_instructions>",
            ),
            _message(
                "user",
                f"# AGENTS.md\n\n<INSTRUCTIONS>\n{prose(source, RULES_BYTES)}\n</INSTRUCTIONS>",
            ),
            _message(
                "user",
                "<environment_context>\n  <cwd>/workspace</cwd>\n  <shell>bash</shell>\n"
                "</environment_context>",
            ),
            *_history(source, plain),
            _message("user", f"{ASK} ({NUMBER.decode()}). [[play {play}]]"),
        ],
        "tools": list(_tools(source, plain)),
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "none"} if plain else {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": [] if plain else ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "text": {"verbosity": "low"},
        "client_metadata": {
            "session_id": SESSION,
            "turn_id": NUMBER.decode(),
            "x-codex-window-id": f"{SESSION}:0",
        },
    }
    if plain:
        del body["client_metadata"]
    return numbered(json.dumps(body, separators=(",", ":")).encode(), seed)


def numbered(body: bytes, seed: int) -> Callable[[int], bytes]:
    """Returns bodies that differ in place of `NUMBER`, within a run and from run to run."""
    run = seed * 10_000 % 100_000_000
    return lambda number: body.replace(NUMBER, b"%08d" % (run + number))


def _message(role: str, text: str) -> Body:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _history(source: random.Random, plain: bool) -> Iterator[Body]:
    yield _message("user", prose(source, 300))
    left = HISTORY_BYTES
    step = 0
    while left > 0:
        step += 1
        call_id = f"call_{step:06d}"
        output = prose(source, source.randrange(*OUTPUT_BYTES))
        left -= len(output)
        if not plain:
            yield _reasoning(source, step)
        if step % 3 or plain:
            arguments = json.dumps({"path": f"src/module_{step}.py", "pattern": prose(source, 60)})
            yield {
                "type": "function_call",
                "name": FUNCTIONS[0],
                "arguments": arguments,
                "call_id": call_id,
            }
            yield {"type": "function_call_output", "call_id": call_id, "output": output}
        else:
            line = prose(source, 200).splitlines()[0]
            patch = f"*** Begin Patch\n*** Add File: src/new_{step}.py\n+{line}\n*** End Patch\n"
            yield {
                "type": "custom_tool_call",
                "name": "apply_patch",
                "input": patch,
                "call_id": call_id,
            }
            yield {"type": "custom_tool_call_output", "call_id": call_id, "output": output}


def _reasoning(source: random.Random, step: int) -> Body:
    summary = [{"type": "summary_text", "text": f"**Step {step}** {prose(source, 80)}"}]
    # Sealed by another server, as after a change of servers in mid-session: it cannot be opened
    # here.
    return {
        "type": "reasoning",
        "summary": summary,
        "content": None,
        "encrypted_content": f"gAAAAAB{step:040d}==",
    }


def _tools(source: random.Random, plain: bool) -> Iterator[Body]:
    for name in FUNCTIONS:
        description = prose(source, 500)
        yield {
            "type": "function",
            "name": name,
            "description": description,
            "strict": False,
            "parameters": schema(source),
        }
    if plain:
        return
    edit = {"type": "grammar", "syntax": "lark", "definition": GRAMMAR}
    yield {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files. Freeform: no JSON.",
        "format": edit,
    }
    found = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    yield {
        "type": "tool_search",
        "execution": "client",
        "description": "Finds more tools.",
        "parameters": found,
    }
    yield {"type": "web_search", "external_web_access": False}
