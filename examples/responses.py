"""Two turns of the Responses API, by HTTP alone; the second continues the stored first one: python
examples/responses.py [URL]"""

import json
import sys
import urllib.request
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


def respond(body: dict[str, Any]) -> dict[str, Any]:
    """Sends a request; returns the response."""
    request = urllib.request.Request(f"{URL}/v1/responses", json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def text_of(response: dict[str, Any]) -> str:
    """The text of a response, without its reasoning."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


with urllib.request.urlopen(f"{URL}/v1/models") as response:
    model = json.load(response)["data"][0]["id"]

first = respond({"model": model, "input": "Say hello in one sentence."})
print(text_of(first))
second = respond({"model": model, "input": "And goodbye.", "previous_response_id": first["id"]})
print(text_of(second))
usage = second["usage"]
cached = usage["input_tokens_details"]["cached_tokens"]
print(f"{usage['input_tokens']} input tokens, {cached} cached")
