"""Streams one turn of Chat Completions, by HTTP alone: python examples/chat.py [URL]"""

import json
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


def stream(path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Sends a request; yields the chunks of its stream."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: {"):  # the last one is [DONE]
                yield json.loads(line.removeprefix(b"data: "))


with urllib.request.urlopen(f"{URL}/v1/models") as response:
    model = json.load(response)["data"][0]["id"]

body = {
    "model": model,
    "messages": [{"role": "user", "content": "Say hello in one sentence."}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
for chunk in stream("/v1/chat/completions", body):
    for choice in chunk["choices"]:
        print(choice["delta"].get("content") or "", end="", flush=True)
    if chunk.get("usage"):
        usage = chunk["usage"]
        print(
            f"\n{usage['prompt_tokens']} input tokens, {usage['completion_tokens']} output tokens"
        )
