"""Checks samples of `turnwire trajectories` against the messages that they were made of.

    python trajectory_check.py TAP SAMPLES [MISSING_TURN...]

Uses the standard library only, and nothing of Turnwire: it reads the JSON of the bus itself. Prints
a summary as JSON; status 1 and the errors, if any.
"""

import base64
import json
import struct
import sys
from collections import defaultdict
from typing import Any


def ids_of(packed: str) -> list[int]:
    data = base64.b64decode(packed)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def recorded(path: str) -> dict[str, dict[str, Any]]:
    """For each turn: prompt, output with the end token, log probabilities, and what its last event
    counts."""
    turns: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"tokens": {}, "logprobs": {}, "stop": None, "count": None, "attempts": 0}
    )
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            message = json.loads(line)
            kind, payload = message["subject"].split(".")[2], message.get("payload")
            if kind == "gen" and payload["parser"]:
                turns[payload["turn"]]["prompt"] = ids_of(payload["prompt"])
                turns[payload["turn"]]["attempts"] += 1
            elif kind == "tok":
                for entry in payload["entries"]:
                    turn = turns[entry["turn"]]
                    for at, token in enumerate(entry.get("ids", ()), entry["at"]):
                        turn["tokens"][at] = token
                    for at, pairs in enumerate(entry.get("logprobs") or (), entry["at"]):
                        # A stream that is sent again has none for its first tokens.
                        if pairs:
                            turn["logprobs"][at] = pairs[0][1]
                    finish = entry.get("finish") or {}
                    if finish.get("stop_id") is not None:
                        turn["stop"] = (
                            finish["stop_id"],
                            (finish.get("logprobs") or [[0, None]])[0][1],
                        )
            elif kind == "evt":
                for entry in payload["entries"]:
                    for event in entry["events"]:
                        if event["type"] == "finish":
                            turns[entry["turn"]]["count"] = event["usage"].get("output", 0)
    for turn in turns.values():
        output = [turn["tokens"][at] for at in range(len(turn["tokens"]))]
        if turn["stop"] is not None and turn["count"] == len(output) + 1:
            turn["logprobs"][len(output)] = turn["stop"][1]
            output.append(turn["stop"][0])
        turn["output"] = output[: turn["count"]]
    return {name: turn for name, turn in turns.items() if turn["count"]}


def is_near(one: float | None, other: float | None) -> bool:
    """Whether both are null, or equal in single precision."""
    if one is None or other is None:
        return one is other
    return struct.pack("<f", one) == struct.pack("<f", other)


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
        turn = turns[name]
        if ids[:start] != turn["prompt"]:
            errors.append(f"{name}: the ids before it are not its prompt")
        if ids[start:end] != turn["output"]:
            errors.append(f"{name}: its ids are not those that were decoded")
        decoded |= set(range(start, end))
        if sample["logprobs"] is not None:
            expected = [turn["logprobs"].get(at) for at in range(end - start)]
            for at, found in enumerate(sample["logprobs"][start:end]):
                # Those of tokens before the death of a worker are unknown.
                is_unknown = found is None and turn["attempts"] > 1
                if not is_unknown and not is_near(found, expected[at]):
                    errors.append(f"{name}: another log probability at {at}")
        place = start
        for block in span["blocks"] or ():
            if not place <= block["start"] <= block["end"] <= end:
                errors.append(f"{name}: {block} is out of place")
            place = block["end"]
    if [at for at, bit in enumerate(mask) if bit] != sorted(decoded):
        errors.append("the mask is not the decoded tokens")
    return errors


def main(tap: str, samples: str, *missing: str) -> int:
    turns, seen, errors = recorded(tap), set[str](), []
    with open(samples, encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines]
    for sample in read:
        errors += [f"{sample['id']}: {error}" for error in errors_of(sample, turns, seen)]
    if unseen := turns.keys() - seen - {*missing}:
        errors.append(f"in no sample: {sorted(unseen)}")
    tokens = sum(len(turn["output"]) for turn in turns.values())
    print(
        json.dumps({"turns": len(turns), "samples": len(read), "decoded": tokens, "errors": errors})
    )
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
