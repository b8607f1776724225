"""A session of an agent in which the seventh turn computes everything again: the date in its
instructions changed.

`python -m tests.tools.inspector.walk URL` plays it on a running server (docs/inspector.md).
"""

import json
import random
import sys
import urllib.request
from typing import Any

TURNS = 7
SENTENCE = "ledger token model prompt the every that wrote and each begins with before it"
TOOL = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}


def play(url: str, session: str = "walk") -> list[str]:
    """Plays the session; returns the request ids of its turns."""
    messages: list[dict[str, Any]] = []
    requests = []
    for turn in range(1, TURNS + 1):
        if turn % 2:  # the odd turns are questions, the even ones have the results of their calls
            text = f"{filler(turn, 4500)}\nRun `cat chapter-{turn}.txt` with your shell tool."
            messages.append({"role": "user", "content": text})
        date = "2026-11-23" if turn < TURNS else "2026-11-24"
        answer = post(
            url,
            session,
            messages,
            f"You are a coding agent.\nToday's date is {date}.\n{filler(0, 3000)}",
        )
        requests.append(answer["id"].removeprefix("msg_"))
        messages.append({"role": "assistant", "content": answer["content"]})
        calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        if calls:
            results = [
                {"type": "tool_result", "tool_use_id": call, "content": filler(turn, 4500)}
                for call in calls
            ]
            messages.append({"role": "user", "content": results})
    return requests


def post(url: str, session: str, messages: list[dict[str, Any]], system: str) -> dict[str, Any]:
    """One turn."""
    body = {
        "model": "turnwire-demo",
        "max_tokens": 1024,
        "system": system,
        "messages": messages,
        "tools": [TOOL],
        "metadata": {"user_id": json.dumps({"session_id": session})},
    }
    headers = {"content-type": "application/json", "user-agent": "walk/1.0"}
    request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def filler(seed: int, words: int) -> str:
    """Words that are the same in every run."""
    source = random.Random(seed)
    return " ".join(source.choice(SENTENCE.split()) for _ in range(words))


if __name__ == "__main__":
    print("\n".join(f"req_{one}" for one in play(sys.argv[1])))
