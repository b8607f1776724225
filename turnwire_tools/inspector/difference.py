"""Explains how a prompt departs from the session's previous one: where, why, and how many tokens
that costs. Pure."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Call, Part, Reasoning, Text
from services.prompt_diff.change import Change
from services.prompt_diff.conversations import INSERTED, LEFT_OUT, system_changes
from services.prompt_diff.prompts import ComparedPrompt, difference
from turnwire_tools.inspector.prompts import StoredPrompt
from turnwire_tools.inspector.turns import Departure, InspectedTurn

OPENING_TOKENS = 12
"""A prompt's last tokens open the answer. Templates write them differently once the answer is
history."""
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
"""Why the newest turn's original tokens are not in the prompt
(`services.ledger.lookup.match.Outcome`)."""


class _PromptDifference(Struct, frozen=True):
    """The difference to the prompt of the previous turn, without its cause."""

    previous: InspectedTurn
    at: int | None
    changes: list[Change]

    def departure(
        self,
        cause: str,
        reason: str,
        *,
        again: int = 0,
        extends: bool = False,
        was: str = "",
        now: str = "",
    ) -> Departure:
        """The difference with its cause."""
        return Departure(
            self.at,
            again,
            self.changes,
            previous=self.previous.id,
            extends=extends,
            cause=cause,
            reason=reason,
            was=was,
            now=now,
        )


def compare(
    turn: InspectedTurn,
    now: StoredPrompt,
    previous: InspectedTurn,
    before: StoredPrompt | None,
    *,
    ancestors: Iterable[InspectedTurn] = (),
    decode: Decode | None = None,
) -> Departure:
    """Compares a prompt with the previous one and its answer.

    `before`: the previous prompt; None: it is no longer known. `ancestors`: the previous turn and
    those before it, newest first. `decode` makes text of tokens, where a tokenizer is at hand.
    """
    if before is None:
        reason = "the previous prompt is no longer known"
        return _PromptDifference(previous, None, []).departure("unknown", reason)

    result = difference(_compared(before), _compared(now), answer_parts(previous), previous.ids)
    # Billing headers, which the preprocessor removes, are shown where nothing else has changed.
    changes = result.changes or system_changes(before.conversation, now.conversation)
    delta = _PromptDifference(previous, result.at, changes)
    if delta.at is None:
        return _by_messages(delta)
    if not result.again:
        reason = "the prompt begins with all tokens of the previous prompt and its answer"
        return delta.departure("none", reason, extends=True)
    if delta.at == len(now.ids):
        reason = "the same prompt again: another try, or another choice of one request"
        return delta.departure("none", reason)

    cause, reason = _cause(turn, delta.at, before, changes, ancestors)
    if decode is None:
        return delta.departure(cause, reason, again=result.again)
    shown = slice(max(0, delta.at - AHEAD), delta.at + AROUND)
    was = decode((before.ids + previous.ids)[shown])
    return delta.departure(cause, reason, again=result.again, was=was, now=decode(now.ids[shown]))


def without_texts(departure: Departure) -> Departure:
    """The difference without words of either conversation."""
    changes = [replace(change, was="", now="") for change in departure.changes]
    return replace(departure, changes=changes, was="", now="")


def _by_messages(delta: _PromptDifference) -> Departure:
    """Where the tokens are unknown, as in a redacted recording, the messages alone decide."""
    decisive = [change for change in delta.changes if change.kind != "reasoning"]
    if not decisive:
        return delta.departure("none", "the history is extended (tokens unknown)", extends=True)
    first = decisive[0]
    return delta.departure(first.kind, f"{in_words(first)} (tokens unknown)")


def _compared(prompt: StoredPrompt) -> ComparedPrompt:
    return ComparedPrompt(ids=prompt.ids, conversation=prompt.stripped)


def answer_parts(turn: InspectedTurn) -> list[Part]:
    """A turn's answer as a client would send it back."""
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
    """The numbers of prompt tokens that a previous turn had and this one computed: those after the
    difference, unless the worker had the new prompt from another session, and those of the common
    beginning."""
    departure = turn.difference
    if departure is None:
        return 0, 0
    if departure.at is None or turn.cached is None:
        return departure.again, 0
    computed = max(0, turn.prompt - turn.cached)
    lost = max(0, min(departure.at, turn.prompt) - turn.cached)
    changed = min(departure.again, computed - lost)
    if lost < MIN_LOST:
        return changed, 0
    return changed, lost


def in_words(change: Change) -> str:
    """Describes a change."""
    match change.kind:
        case "tools" | "system" | "settings":
            varies = {
                "date": " (a date or time)",
                "id": " (an identifier)",
                "number": " (a number)",
            }
            return f"{change.where} changed{varies.get(change.varies, '')}"
        case "reasoning":
            was_absent = "no reasoning" in change.was
            happened = "added" if was_absent else "left out"
            return f"the reasoning of {change.where} was {happened}"
        case "answer":
            return f"the client changed the model's answer, {change.where}"
        case "history" if change.now == LEFT_OUT or change.was == INSERTED:
            verb = "were" if change.where.startswith("messages ") else "was"
            happened = "left out" if change.now == LEFT_OUT else "inserted"
            return f"{change.where} {verb} {happened}"
        case "history":
            return f"{change.where} was cut or rearranged: {change.was} before, {change.now} now"
        case "message":
            return f"{change.where} was edited"


def _cause(
    turn: InspectedTurn,
    at: int,
    before: StoredPrompt,
    changes: Sequence[Change],
    ancestors: Iterable[InspectedTurn],
) -> tuple[str, str]:
    """The cause and its description. A change of the conversation explains a departure only where
    that can be its place: one after the previous prompt's last message is due to the answer."""
    in_answer = at >= len(before.ids) - OPENING_TOKENS
    if in_answer:
        kinds = ("answer", "reasoning", "history")
        possible = [change for change in changes if change.kind in kinds]
    else:
        possible = [change for change in changes if change.kind != "reasoning"]
    if possible and possible[0].kind != "reasoning":
        return possible[0].kind, in_words(possible[0])

    for earlier in ancestors:
        start = earlier.prompt
        if start - OPENING_TOKENS <= at < start + len(earlier.ids) + 1:
            return _in_answer(turn, earlier, at, possible or changes)

    if changes:
        return changes[0].kind, in_words(changes[0])
    return (
        "unknown",
        "the conversation is the same, and its tokens are others: the template wrote something "
        "else",
    )


def _in_answer(
    turn: InspectedTurn, earlier: InspectedTurn, at: int, changes: Sequence[Change]
) -> tuple[str, str]:
    """Cause and description of a departure in the answer of an earlier turn."""
    which = f"the answer of turn {earlier.number}"
    has_reasoning = any(block.kind == "reasoning" for block in earlier.blocks)
    if has_reasoning and at <= earlier.prompt + OPENING_TOKENS:
        reason = f"the reasoning in {which} is left out: "
        if any(change.kind == "reasoning" for change in changes):
            reason += "the client did not send it back, and "
        reason += RECALL.get(turn.recall, "the template drops it")
        return "reasoning", reason
    if turn.recall == "template":
        return "template", f"the template renders {which} differently"
    because = RECALL.get(turn.recall, "its text was encoded again")
    return "tokenization", f"{which} has the same text in other tokens: {because}"
