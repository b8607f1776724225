"""Explains how a prompt departs from the session's previous one: where, why, and how many tokens that costs. Pure."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from schemas.conversation import Call, Part, Reasoning, Text
from services.tokenization.segments import common_prefix
from turnwire_tools.inspector.changes import changes_of
from turnwire_tools.inspector.turns import Change, Difference, InspectedTurn, KnownPrompt

OPENING_TOKENS = 12
"""A prompt's last tokens open the answer. Templates write them differently once the answer is history."""
AROUND = 24
"""Tokens after the first difference that are shown as text."""
AHEAD = 8
"""Tokens before it."""
MIN_LOST = 128
"""Fewer tokens are the rest of a KV block."""

Decode = Callable[[Sequence[int]], str]

RECALL = {
    "unknown": "the ledger does not have the turn",
    "client": "the client changed it",
    "ambiguous": "it may be one of several turns",
    "moved": "the text before it changed",
    "template": "the template renders it differently",
    "": "there is no ledger",
}
"""Why the newest turn's original tokens are not in the prompt (`services.ledger.recall.Outcome`)."""


def compare(
    turn: InspectedTurn,
    now: KnownPrompt,
    previous: InspectedTurn,
    before: KnownPrompt | None,
    *,
    ancestors: Iterable[InspectedTurn] = (),
    decode: Decode | None = None,
) -> Difference:
    """Compares a prompt with the previous one and its answer.

    `before`: what is known of the previous prompt; None: nothing any more. `ancestors`: the previous turn and those
    before it, newest first. `decode` makes text of tokens, where a tokenizer is at hand.
    """
    if before is None:
        reason = "the previous prompt is no longer known"
        return Difference(previous=previous.id, extends=False, cause="unknown", reason=reason)
    changes = changes_of(before.conversation, answer_parts(previous), now.conversation)
    difference = partial(Difference, previous=previous.id, changes=changes)
    if not before.ids or not now.ids:
        # Where the tokens are unknown, as in a redacted recording, the messages alone decide.
        first = next((change for change in changes if change.kind != "reasoning"), None)
        cause, reason = ("none", "the history is extended") if first is None else (first.kind, in_words(first))
        return difference(extends=first is None, cause=cause, reason=f"{reason} (tokens unknown)")
    sequence = before.ids + previous.ids
    at = len(common_prefix(sequence, now.ids))
    if at == len(sequence):
        reason = "the prompt begins with all tokens of the previous prompt and its answer"
        return difference(extends=True, at=at, cause="none", reason=reason)
    if at == len(now.ids):
        reason = "the same prompt again: another try, or another choice of one request"
        return difference(extends=False, at=at, cause="none", reason=reason)
    cause, reason = _cause(turn, at, before, changes, ancestors)
    was = now_text = ""
    if decode is not None:
        start, end = max(0, at - AHEAD), at + AROUND
        was, now_text = decode(sequence[start:end]), decode(now.ids[start:end])
    again = len(sequence) - at
    return difference(extends=False, at=at, again=again, cause=cause, reason=reason, was=was, now=now_text)


def answer_parts(turn: InspectedTurn) -> list[Part]:
    """A turn's answer, as a client would send it back."""
    parts: list[Part] = []
    for block in turn.blocks:
        if block.kind == "reasoning":
            parts.append(Reasoning(block.text))
        elif block.kind == "text":
            parts.append(Text(block.text))
        elif block.complete:
            parts.append(Call(block.call_id, block.name, block.text))
    return parts


def computed_again(turn: InspectedTurn) -> tuple[int, int]:
    """Prompt tokens that a previous turn had and this one computed: those after the difference, unless the worker had
    the new prompt from another session, and those of the common beginning."""
    difference = turn.difference
    if difference is None:
        return 0, 0
    if difference.at is None or turn.cached is None:
        return difference.again, 0
    computed = max(0, turn.prompt - turn.cached)
    lost = max(0, min(difference.at, turn.prompt) - turn.cached)
    return min(difference.again, computed - lost), lost if lost >= MIN_LOST else 0


def in_words(change: Change) -> str:
    """What a change did, as the end of a sentence."""
    match change.kind:
        case "tools":
            return f"{change.where} changed"
        case "system":
            kinds = {"date": " (a date or time)", "id": " (an identifier)", "number": " (a number)"}
            return f"{change.where} changed{kinds.get(change.varies, '')}"
        case "settings":
            return f"{change.where} changed"
        case "reasoning":
            return f"the reasoning of {change.where} was {'added' if 'no reasoning' in change.was else 'left out'}"
        case "answer":
            return f"the client changed the model's answer, {change.where}"
        case "history":
            return f"{change.where} was cut or rearranged: {change.was} before, {change.now} now"
        case "message":
            return f"{change.where} was edited"


def _cause(
    turn: InspectedTurn,
    at: int,
    before: KnownPrompt,
    changes: Sequence[Change],
    ancestors: Iterable[InspectedTurn],
) -> tuple[str, str]:
    """The cause and its description. A change of the conversation explains a departure only where that can be its
    place: one after the previous prompt's last message is due to the answer."""
    behind_prompt = at >= len(before.ids) - OPENING_TOKENS
    answered = [change for change in changes if change.kind in ("answer", "reasoning", "history")]
    others = [change for change in changes if change.kind != "reasoning"]
    possible = answered if behind_prompt else others
    if possible and possible[0].kind != "reasoning":
        return possible[0].kind, in_words(possible[0])
    for earlier in ancestors:
        start = earlier.prompt
        if start - OPENING_TOKENS <= at < start + len(earlier.ids) + 1:
            return _in_answer(turn, earlier, at, possible or changes)
    if changes:
        return changes[0].kind, in_words(changes[0])
    return "unknown", "the conversation is the same, and its tokens are others: the template wrote something else"


def _in_answer(turn: InspectedTurn, earlier: InspectedTurn, at: int, changes: Sequence[Change]) -> tuple[str, str]:
    """The cause of a departure in the answer of an earlier turn."""
    which = f"the answer of turn {earlier.number}"
    reasoning = any(block.kind == "reasoning" for block in earlier.blocks)
    dropped = next((change for change in changes if change.kind == "reasoning"), None)
    if reasoning and at <= earlier.prompt + OPENING_TOKENS:
        by = "the client did not send it back, and " if dropped is not None else ""
        because = RECALL.get(turn.recall)
        return "reasoning", f"the reasoning in {which} is left out: " + by + (because or "the template drops it")
    if turn.recall == "template":
        return "template", f"the template renders {which} differently"
    because = RECALL.get(turn.recall, "its text was encoded again")
    return "tokenization", f"{which} has the same text in other tokens: {because}"
