"""Checks samples of `turnwire trajectories` or of a rollout against the messages that they were
made of.

    python trajectory_check.py TAP SAMPLES [MISSING_TURN...]

Uses the standard library only, and nothing of Turnwire: it reads the JSON of the bus itself. Prints
a summary as JSON; status 1 and the errors, if any.
"""

import base64
import json
import re
import struct
import sys
from collections import defaultdict
from typing import Any

UNKNOWN = -1
"""The version of weights that are not known."""


def ids_of(packed: str) -> list[int]:
    data = base64.b64decode(packed)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def recorded(path: str) -> dict[str, dict[str, Any]]:
    """For each turn: prompt, output with the end token, log probabilities, versions of weights,
    what its last event counts, the request, and the text and calls that it wrote."""
    turns: dict[str, dict[str, Any]] = defaultdict(
        lambda: {
            "tokens": {},
            "logprobs": {},
            "versions": {},
            "stop": None,
            "count": None,
            "request": None,
            "images": [],
            "blocks": {},
            "attempts": 0,
            "attempt": 1,
        }
    )
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            message = json.loads(line)
            kind, payload = message["subject"].split(".")[2], message.get("payload")
            if kind == "turn":
                turn = turns[payload["turn"]]
                if turn["request"] is None:
                    turn["request"], turn["number"] = payload["conversation"], number
            elif kind == "gen" and payload["parser"]:
                turn = turns[payload["turn"]]
                turn["prompt"] = ids_of(payload["prompt"])
                turn["images"] = payload.get("images", [])
                turn["attempts"] += 1
                start_attempt(turn, payload)
            elif kind == "tok":
                for entry in payload["entries"]:
                    take_tokens(turns[entry["turn"]], entry)
            elif kind == "evt":
                for entry in payload["entries"]:
                    for event in entry["events"]:
                        take_event(turns[entry["turn"]], event)
    for turn in turns.values():
        output = [turn["tokens"][at] for at in range(len(turn["tokens"]))]
        if turn["stop"] is not None and turn["count"] == len(output) + 1:
            turn["logprobs"][len(output)] = turn["stop"][1]
            output.append(turn["stop"][0])
        turn["output"] = output[: turn["count"]]
    # Turns without a request began before the recording.
    begun = {name: turn for name, turn in turns.items() if turn["request"] is not None}
    return {name: turn for name, turn in begun.items() if turn["count"]}


def start_attempt(turn: dict[str, Any], request: dict[str, Any]) -> None:
    """Keeps the tokens that another attempt resumes."""
    if request["attempt"] <= turn["attempt"]:
        return
    turn["attempt"] = request["attempt"]
    resumed = len(ids_of(request.get("resume", "")))
    for values in (turn["tokens"], turn["logprobs"], turn["versions"]):
        for at in [at for at in values if at >= resumed]:
            del values[at]
    turn["stop"] = None


def take_tokens(turn: dict[str, Any], entry: dict[str, Any]) -> None:
    if entry["attempt"] < turn["attempt"]:
        return
    finish = entry.get("finish") or {}
    end = entry["at"] + len(entry.get("ids", ()))
    for at, token in enumerate(entry.get("ids", ()), entry["at"]):
        turn["tokens"][at] = token
    for at, pairs in enumerate(entry.get("logprobs") or (), entry["at"]):
        # A stream that is sent again has none for its first tokens.
        if pairs:
            turn["logprobs"][at] = pairs[0][1]
    if finish.get("stop_id") is not None:
        turn["stop"] = finish["stop_id"], (finish.get("logprobs") or [[0, None]])[0][1]
        end += 1
    spans = entry.get("weights", [])
    for at in range(entry["at"], end):
        begun = [version for start, version in spans if start <= at]
        version = begun[-1] if begun else turn["versions"].get(at - 1, 0)
        # A worker that goes on with another one's tokens does not know their version.
        if version != UNKNOWN or at not in turn["versions"]:
            turn["versions"][at] = version
    for start, version in finish.get("weights", []):
        for at in range(start, end):
            turn["versions"][at] = version


def take_event(turn: dict[str, Any], event: dict[str, Any]) -> None:
    if event["type"] == "finish":
        usage = event["usage"]
        turn["count"] = usage.get("output", 0) - usage.get("discarded", 0)
    elif event["type"] == "block_start":
        turn["blocks"].setdefault(event["block"], {"text": ""}).update(event)
    elif event["type"] == "delta":
        block = turn["blocks"].setdefault(event["block"], {"text": ""})
        block["text"] = block["text"][: event["offset"]] + event["text"]


def errors_of(
    sample: dict[str, Any], turns: dict[str, dict[str, Any]], seen: set[str]
) -> list[str]:
    ids, mask, errors = sample["ids"], sample["loss_mask"], []
    if not len(ids) == len(mask) == len(sample["logprobs"] or mask):
        errors.append("lengths differ")
    decoded = set()
    for span in sample["turns"]:
        name, start, end = span["turn"], span["start"], span["end"]
        if name in seen:
            errors.append(f"{name} is in two samples")
        seen.add(name)
        if name not in turns:
            errors.append(f"{name} was not decoded")
            continue
        turn = turns[name]
        if ids[:start] != turn["prompt"]:
            errors.append(f"{name}: the ids before it are not its prompt")
        if ids[start:end] != turn["output"]:
            errors.append(f"{name}: its ids are not those that were decoded")
        decoded |= set(range(start, end))
        if sample["logprobs"] is not None:
            for at, found in enumerate(sample["logprobs"][start:end]):
                # Those of tokens before the death of a worker are unknown.
                is_unknown = found is None and turn["attempts"] > 1
                if not is_unknown and not is_near(found, turn["logprobs"].get(at)):
                    errors.append(f"{name}: another log probability at {at}")
        if [image["hash"] for image in turn["images"]] != [
            image["hash"] for image in sample["images"] if image["at"] < start
        ]:
            errors.append(f"{name}: other images")
        errors += [f"{name}: {error}" for error in version_errors(sample, span, turn)]
        place = start
        for block in span["blocks"] or ():
            if not place <= block["start"] <= block["end"] <= end:
                errors.append(f"{name}: {block} is out of place")
            place = block["end"]
    if [at for at, bit in enumerate(mask) if bit] != sorted(decoded):
        errors.append("the mask is not the decoded tokens")
    covered = [at for span in sample["weights"] for at in range(span["start"], span["end"])]
    if covered != sorted(decoded):
        errors.append("the spans of weights are not the decoded tokens")
    return errors


def is_near(one: float | None, other: float | None) -> bool:
    """Whether both are null, or equal in single precision."""
    if one is None or other is None:
        return one is other
    return struct.pack("<f", one) == struct.pack("<f", other)


def version_errors(sample: dict[str, Any], span: dict[str, Any], turn: dict[str, Any]) -> list[str]:
    start, end = span["start"], span["end"]
    found = {}
    for weights in sample["weights"]:
        for at in range(weights["start"], weights["end"]):
            found[at] = UNKNOWN if weights["version"] is None else weights["version"]
    errors = []
    for at in range(start, end):
        is_unknown = found.get(at) == UNKNOWN and turn["attempts"] > 1
        if not is_unknown and found.get(at) != turn["versions"].get(at - start):
            errors.append(f"another version at {at}")
    return errors


def tree_errors(samples: list[dict[str, Any]], turns: dict[str, dict[str, Any]]) -> list[str]:
    """Whether each sample's parent is a turn that it can go back to."""
    by_id = {sample["id"]: sample for sample in samples}
    errors = []
    for sample in samples:
        name, parent, departs = sample["id"], sample["parent"], sample["departs"]
        if departs is not None and departs["cause"] != "unseen" and parent is None:
            errors.append(f"{name} departs, and has no parent")
        if parent is None:
            continue
        spans = {span["turn"] for span in by_id[parent["sample"]]["turns"]}
        if parent["turn"] not in spans:
            errors.append(f"{name}: its parent's turn is not in its parent's sample")
        if has_cycle(sample, by_id):
            errors.append(f"{name} goes back to itself")
        error = parent_error(sample, by_id[parent["sample"]], turns)
        if error:
            errors.append(f"{name}: {parent['cause']}: {error}")
    return errors


def has_cycle(sample: dict[str, Any], by_id: dict[str, dict[str, Any]]) -> bool:
    passed = set()
    while sample["parent"] is not None:
        if sample["id"] in passed:
            return True
        passed.add(sample["id"])
        sample = by_id[sample["parent"]["sample"]]
    return False


def parent_error(
    sample: dict[str, Any], other: dict[str, Any], turns: dict[str, dict[str, Any]]
) -> str:
    """Why a sample cannot go back to its parent's turn; "" if it can."""
    parent, departs = sample["parent"], sample["departs"]
    first, earlier = turns[sample["turns"][0]["turn"]], turns[parent["turn"]]
    sequence = earlier["prompt"] + earlier["output"]
    cause = parent["cause"]
    if departs is not None and departs.get("at") is not None:
        at = departs["at"]
        ids, others = sample["ids"], other["ids"]
        differ = at >= len(first["prompt"]) or ids[at] != others[at]
        if ids[:at] != others[:at] or not differ:
            return f"{at} is not where the samples differ"
    # Of choices that were asked for at once, the first to end is the parent.
    if cause not in ("background", "retry") and first["number"] < earlier["number"]:
        return "it was asked for before its parent"
    if cause == "retry" and first["prompt"] != earlier["prompt"]:
        return "another prompt"
    if cause == "fork" and first["prompt"][: len(sequence)] != sequence:
        return "its prompt does not begin with its parent's tokens"
    if cause in ("client", "template") and first["prompt"][: len(sequence)] == sequence:
        return "its prompt begins with its parent's tokens"
    if cause == "helper" and parent.get("call_id") is not None:
        calls = {block.get("call_id"): block["text"] for block in earlier["blocks"].values()}
        if not any(bare(text) in bare(asked_of(first)) for text in strings_of(calls, parent)):
            return "the call has none of its first texts"
    if cause == "compaction":
        written = [block for block in earlier["blocks"].values() if block.get("kind") == "text"]
        lines = bare_lines("\n".join(block["text"] for block in written))
        if not any(line in bare(json_text(first["request"])) for line in lines):
            return "nothing of the summary is in its first request"
    return ""


def strings_of(calls: dict[str | None, str], parent: dict[str, Any]) -> list[str]:
    """The strings in the arguments of the call that a parent names, at any depth."""
    found: list[str] = []
    waiting: list[Any] = [json.loads(calls.get(parent["call_id"], "null"))]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and value.strip():
            found.append(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


def asked_of(turn: dict[str, Any]) -> str:
    """The texts of a user in a request."""
    messages = [one for one in turn["request"]["messages"] if one["role"] == "user"]
    return "\n".join(part.get("text", "") for one in messages for part in one["parts"])


def json_text(request: dict[str, Any]) -> str:
    parts = [part for message in request["messages"] for part in message["parts"]]
    return "\n".join(part.get("text") or "" for part in parts)


def bare(text: str) -> str:
    """Letters and digits of a text without its tags."""
    return re.sub(r"[\W_]", "", re.sub(r"<[^<>]*>", "", text))


def bare_lines(text: str) -> list[str]:
    return [line for line in map(bare, text.splitlines()) if len(line) >= 16]


def main(tap: str, samples: str, *missing: str) -> int:
    turns, seen, errors = recorded(tap), set[str](), []
    with open(samples, encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines]
    for sample in read:
        errors += [f"{sample['id']}: {error}" for error in errors_of(sample, turns, seen)]
    errors = errors or tree_errors(read, turns)
    if unseen := turns.keys() - seen - {*missing}:
        errors.append(f"in no sample: {sorted(unseen)}")
    tokens = sum(len(turn["output"]) for turn in turns.values())
    print(
        json.dumps({"turns": len(turns), "samples": len(read), "decoded": tokens, "errors": errors})
    )
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
