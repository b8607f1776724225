"""Brings an answer's events to a form that two runs have in common: without ids, times, seals and
what a cache saved, with the pieces of a text joined. Pure."""

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

Events: TypeAlias = Sequence[tuple[str, Any]]

_IDS = frozenset({"id", "item_id", "call_id", "tool_use_id", "response_id", "request_id"})
_SEALS = frozenset({"signature", "encrypted_content"})
_SEALED = frozenset({"reasoning.encrypted", "redacted_thinking"})
"""Types with a seal in `data`."""
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Tokens that `input_tokens` of Messages leaves out."""
_VARYING = frozenset(
    {
        *(
            "created",
            "created_at",
            "completed_at",
            "sequence_number",
            "obfuscation",
            "prompt_cache_key",
        ),
        *("cached_tokens", *_CACHED, "cache_write_tokens"),
        *("prompt_cache_diagnostics", "diagnostics"),
        "logprobs",  # `log_probabilities`
        "previous_response_id",  # a client sends its history if its stored response was lost
    }
)
"""Members that depend on the time, on what the engine had in its cache, or on what the store
lost."""


_PROMPT_COUNTS = frozenset({"input_tokens", "prompt_tokens", "total_tokens"})


def choice_of(data: Any) -> int | None:
    """The number of the choice that an event of Chat Completions belongs to; None: to all, or to
    the only answer of another API."""
    if not isinstance(data, dict):
        return None
    if data.get("choices") and data.get("object") == "chat.completion.chunk":
        return int(data["choices"][0]["index"])
    call, thought = data.get("tool_call_dispatch"), data.get("reasoning_dispatch")
    if isinstance(call, dict) and "choice_index" in call:
        return int(call["choice_index"])
    return int(thought["index"]) if isinstance(thought, dict) and "index" in thought else None


def by_choice(events: Events) -> list[list[tuple[str, Any]]]:
    """The events of each choice, with those that belong to all."""
    choices = sorted({choice for _, data in events if (choice := choice_of(data)) is not None}) or [
        0
    ]
    return [
        [event for event in events if choice_of(event[1]) in (choice, None)] for choice in choices
    ]


def log_probabilities(value: Any) -> list[Any]:
    """All log probabilities of tokens in an event or in events, in order."""
    if isinstance(value, list | tuple):
        return [probability for member in value for probability in log_probabilities(member)]
    if not isinstance(value, dict):
        return []
    logprobs = value.get("logprobs")
    probabilities = [*((logprobs.get("content") if isinstance(logprobs, dict) else logprobs) or [])]
    for key, member in value.items():
        if key != "logprobs":
            probabilities += log_probabilities(member)
    return probabilities


def canonical(events: Events) -> list[Any]:
    """The events without pings and log probabilities, with ids numbered by their first use, and
    with pieces joined: those of the first choice, then those of the next one."""
    return [event for choice in by_choice(events) for event in _canonical(choice)]


def without_prompt_tokens(value: Any) -> Any:
    """Events without the number of a prompt's tokens."""
    if isinstance(value, list):
        return [without_prompt_tokens(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without_prompt_tokens(member)
        for key, member in value.items()
        if key not in _PROMPT_COUNTS
    }


def _canonical(events: Events) -> list[Any]:
    ids: dict[str, str] = {}
    joined_events: list[Any] = []
    for name, data in events:
        if name == "ping" or (isinstance(data, dict) and data.get("type") in ("ping", "keepalive")):
            continue
        event = [name, _clean(data, ids)]
        if joined_events and (joined := _join(joined_events[-1], event)) is not None:
            joined_events[-1] = joined
        else:
            joined_events.append(event)
    return joined_events


def _clean(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_clean(member, ids) for member in value]
    if not isinstance(value, dict):
        return value
    cleaned: dict[str, Any] = {}
    for key, member in value.items():
        if key in _VARYING:
            continue
        sealed = key in _SEALS or (key == "data" and value.get("type") in _SEALED)
        if sealed and isinstance(member, str) and member:
            cleaned[key] = "SEAL"
        elif key in _IDS and isinstance(member, str) and member:
            cleaned[key] = ids.setdefault(member, f"ID{len(ids)}")
        else:
            cleaned[key] = _clean(member, ids)
    if isinstance(value.get("input_tokens"), int):
        cleaned["input_tokens"] += sum(value.get(name) or 0 for name in _CACHED)
    return cleaned


def _join(before: Any, after: Any) -> Any | None:
    """Two events as one, if they are equal but for the text of one delta; else None."""
    differing = _difference(before, after, within_delta=False)
    if differing is None or len(differing) != 1:
        return None
    path = differing[0]
    joined = json.loads(json.dumps(before))
    place = joined
    other = after
    for step in path[:-1]:
        place, other = place[step], other[step]
    place[path[-1]] += other[path[-1]]
    return joined


def _difference(before: Any, after: Any, *, within_delta: bool) -> list[list[Any]] | None:
    """The paths of the texts of deltas in two events of one form; None if anything else differs.
    Equal texts count, too: a piece may come twice."""
    if isinstance(before, dict) and isinstance(after, dict):
        if before.keys() != after.keys():
            return None
        pairs: list[tuple[Any, Any, Any]] = [(key, before[key], after[key]) for key in before]
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return None
        pairs = [(at, *pair) for at, pair in enumerate(zip(before, after, strict=True))]
    else:
        return [] if before == after else None
    paths: list[list[Any]] = []
    for key, left, right in pairs:
        if (
            isinstance(left, str)
            and isinstance(right, str)
            and (key == "delta" or (within_delta and key in _PIECES))
        ):
            paths.append([key])
            continue
        deeper = _difference(left, right, within_delta=within_delta or key == "delta")
        if deeper is None:
            return None
        paths += [[key, *path] for path in deeper]
    return paths


_PIECES = frozenset(
    {"text", "thinking", "partial_json", "content", "reasoning_content", "reasoning", "arguments"}
)
