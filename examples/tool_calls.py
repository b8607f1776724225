"""An agent loop over Messages, by HTTP alone: each tool runs the moment its call is complete.

python examples/tool_calls.py [URL [TASK]]
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
TASK = sys.argv[2] if len(sys.argv) > 2 else "Run `pwd` with your shell tool."
SHELL = {
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


def blocks(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Streams a turn; yields each block with its last token, while the model may still write the
    next one."""
    request = urllib.request.Request(f"{URL}/v1/messages", json.dumps(body).encode())
    block: dict[str, Any] = {}
    arguments = ""
    with urllib.request.urlopen(request) as response:
        for line in response:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if event["type"] == "content_block_start":
                block = event["content_block"]
                arguments = ""
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                arguments += delta.get("partial_json", "")
                for name in ("text", "thinking", "signature"):
                    if name in delta:
                        block[name] = block.get(name, "") + delta[name]
            elif event["type"] == "content_block_stop":
                if block["type"] == "tool_use":
                    block["input"] = json.loads(arguments or "{}")
                yield block


with urllib.request.urlopen(f"{URL}/v1/models") as response:
    model = json.load(response)["data"][0]["id"]

messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
for _ in range(8):
    answer: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    body = {"model": model, "max_tokens": 1024, "messages": messages, "tools": [SHELL]}
    for block in blocks({**body, "stream": True}):
        answer.append(block)
        if block["type"] == "tool_use":
            output = run(str(block["input"].get("command", "")))
            print(f"{block['name']} {block['input']} -> {output.strip()!r}")
            result = {"type": "tool_result", "tool_use_id": block["id"], "content": output}
            results.append(result)
    messages.append({"role": "assistant", "content": answer})
    if not results:
        print("".join(block["text"] for block in answer if block["type"] == "text"))
        break
    messages.append({"role": "user", "content": results})
