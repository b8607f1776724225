"""Streams one turn of the Messages API, by HTTP alone: python examples/messages.py [URL]"""

import json
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


def stream(path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Sends a request; yields the events of its stream."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


with urllib.request.urlopen(f"{URL}/v1/models") as response:
    model = json.load(response)["data"][0]["id"]

usage: dict[str, Any] = {}
body = {
    "model": model,
    "max_tokens": 1024,
    "stream": True,
    "thinking": {"type": "adaptive"},
    "messages": [{"role": "user", "content": "Say hello in one sentence."}],
}
for event in stream("/v1/messages", body):
    if event["type"] == "message_start":
        usage |= event["message"]["usage"]
    elif event["type"] == "content_block_delta":
        delta = event["delta"]
        print(delta.get("thinking", "") + delta.get("text", ""), end="", flush=True)
    elif event["type"] == "content_block_stop":
        print()
    elif event["type"] == "message_delta":
        usage |= event["usage"]
print(
    f"{usage['input_tokens']} input tokens, {usage['cache_read_input_tokens']} cached, "
    f"{usage['output_tokens']} output"
)
