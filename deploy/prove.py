"""The client of deploy/prove.sh: sends requests to a running stack and checks the answers. Standard
library only."""

import argparse
import http.client
import json
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BODY = {
    "model": "turnwire-demo",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "Say something."}],
}
TOOL = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}


@dataclass
class Turn:
    """One streamed turn: the time of its first token, its duration, its number of tokens."""

    first_s: float
    total_s: float
    tokens: int


def post(url: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    """Returns the answer to one request. Raises SystemExit if it is not 200."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    connection.request(
        "POST", "/v1/messages", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"{response.status}: {response.read(500)!r}")
    return response


def stream(url: str, body: dict[str, Any]) -> Turn:
    """Streams one turn. Raises SystemExit if the stream is not whole."""
    started = time.monotonic()
    first, tokens, blocks, last = 0.0, 0, 0, ""
    for line in post(url, {**body, "stream": True}):
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        last = event["type"]
        if last == "content_block_delta" and not first:
            first = time.monotonic() - started
        blocks += (last == "content_block_start") - (last == "content_block_stop")
        if last == "message_delta":
            tokens = event["usage"]["output_tokens"]
        if last == "error":
            sys.exit(f"the stream failed: {event}")
    if last != "message_stop" or blocks or not tokens:
        sys.exit(
            f"the stream is not whole: it ends with {last or 'nothing'}, {blocks} blocks are open"
        )
    return Turn(first, time.monotonic() - started, tokens)


def there(url: str) -> dict[str, int]:
    """Returns the number of processes of each stage, as the frontend sees them."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request("GET", "/health")
    stages = json.loads(connection.getresponse().read())["stages"]
    return {stage: len(processes) for stage, processes in stages.items()}


def await_stages(url: str, wanted: dict[str, int]) -> None:
    """Waits until the frontend sees the wanted number of each."""
    deadline = time.monotonic() + 30
    while not wanted.items() <= (known := there(url)).items():
        if time.monotonic() > deadline:
            sys.exit(f"wanted {wanted}, there are {known}")
        time.sleep(0.1)


def one(url: str) -> None:
    """Checks a plain answer, a tool call and a stream."""
    message = json.loads(post(url, BODY).read())
    print(f"answers: {message['stop_reason']}, {message['usage']['output_tokens']} tokens")
    message = json.loads(
        post(url, {**BODY, "tools": [TOOL], "tool_choice": {"type": "any"}}).read()
    )
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    if message["stop_reason"] != "tool_use" or not calls:
        sys.exit(f"no tool call: {message}")
    print(f"calls a tool: {calls[0]['name']}({json.dumps(calls[0]['input'])})")
    print(f"streams: {stream(url, BODY).tokens} tokens")


def load(url: str, turns: int) -> None:
    """Runs many turns at once; every one must be whole."""
    started = time.monotonic()
    with ThreadPoolExecutor(turns) as pool:
        done = list(pool.map(lambda _: stream(url, BODY), range(turns)))
    seconds, tokens = time.monotonic() - started, sum(turn.tokens for turn in done)
    first = statistics.median(turn.first_s for turn in done)
    rate = f"{tokens / seconds:.0f} tokens/s"
    print(
        f"{turns} turns at once: {seconds:.2f} s, {rate}, first token after {first:.2f} s (median)"
    )


def spread(recording: Path, wanted: dict[str, int]) -> None:
    """Checks which processes the recorded turns went to."""
    found: dict[str, Counter[str]] = {
        "frontend": Counter(),
        "worker": Counter(),
        "parser": Counter(),
    }
    for line in recording.read_text().splitlines():
        message = json.loads(line)
        for entry in message["payload"]["entries"]:
            for event in entry["events"]:
                if event["type"] == "prepared":
                    found["frontend"][message["subject"].rpartition(".")[2]] += 1
                    found["worker"][event["worker"]] += 1
                    found["parser"][event["parser"]] += 1
    for stage, counts in found.items():
        print(
            f"turns by {stage}: "
            + ", ".join(f"{name} {count}" for name, count in counts.most_common())
        )
        if len(counts) != wanted[stage]:
            sys.exit(f"{wanted[stage]} of stage {stage} should have had turns")


def numbers(text: str) -> dict[str, int]:
    """Parses `worker=2,parser=3` into a dict."""
    return {
        name: int(count) for name, _, count in (pair.partition("=") for pair in text.split(","))
    }


def main() -> None:
    """`prove.py URL one | load TURNS --there A=N,… | spread FILE --over A=N,…`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("one")
    loading = commands.add_parser("load")
    loading.add_argument("turns", type=int)
    loading.add_argument("--there", type=numbers, default={})
    spreading = commands.add_parser("spread")
    spreading.add_argument("recording", type=Path)
    spreading.add_argument("--over", type=numbers, required=True)
    arguments = parser.parse_args()
    if arguments.command == "one":
        one(arguments.url)
    elif arguments.command == "load":
        await_stages(arguments.url, arguments.there)
        load(arguments.url, arguments.turns)
    else:
        spread(arguments.recording, arguments.over)


if __name__ == "__main__":
    main()
