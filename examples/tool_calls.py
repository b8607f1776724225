"""An agent loop over Messages: each tool runs the moment its call is complete.

python examples/tool_calls.py [URL [TASK]]
"""

import subprocess
import sys

from anthropic import Anthropic
from anthropic.types import MessageParam, ToolParam, ToolResultBlockParam

SHELL: ToolParam = {
    "name": "Bash",
    "description": "Runs a command and returns its output.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}
ALLOWED = {"ls", "pwd", "date"}


def run(command: str) -> str:
    """Runs an allowed command; returns its output."""
    words = command.split()
    if not words or words[0] not in ALLOWED:
        return f"only {', '.join(sorted(ALLOWED))} are allowed"
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


client = Anthropic(
    base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000", api_key="any"
)
model = next(iter(client.models.list())).id
task = sys.argv[2] if len(sys.argv) > 2 else "Run `pwd` with your shell tool."
messages: list[MessageParam] = [{"role": "user", "content": task}]
for _ in range(8):
    results: list[ToolResultBlockParam] = []
    with client.messages.stream(
        model=model, max_tokens=1024, messages=messages, tools=[SHELL]
    ) as stream:
        for event in stream:
            # content_block_stop of a call comes with its last token, while the model may still be
            # writing.
            if event.type == "content_block_stop" and event.content_block.type == "tool_use":
                call = event.content_block
                output = run(str(dict(call.input).get("command", "")))
                print(f"{call.name} {call.input} -> {output.strip()!r}")
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": output})
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    if answer.stop_reason != "tool_use":
        print("".join(block.text for block in answer.content if block.type == "text"))
        break
    messages.append({"role": "user", "content": results})
