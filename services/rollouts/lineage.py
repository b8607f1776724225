"""Finds the turn that a sample goes back to: the call that started a helper, the summary that
replaced a history, the session that a title is of. Pure.

Clients that send ids of their sessions and of their agents' parents are believed. Otherwise texts
decide: an agent's first message is an argument of the call that started it, and a summary comes
back in the first message of the conversation that goes on with it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from schemas.conversation import Call, Text
from services.ledger.keys import squeeze
from services.rollouts.open_sample import AddedTurn, OpenSample
from services.rollouts.sample_lines import Parent, ParentCause

MIN_TEXT = 16
"""Characters without white space that a text must have, if it is looked for within another one."""
PROBE = 200
"""Characters of a summary that are looked for, at its beginning and its end: clients shorten long
texts in the middle."""
_TAG = re.compile(r"</?[\w-]+>")
_THOUGHTS = "</analysis>"
"""Ends what Claude Code has the model write before its summary, and leaves out."""


def find_parent(
    sample: OpenSample, others: Sequence[OpenSample], *, one_run: bool
) -> Parent | None:
    """Returns the parent of a sample that begins a conversation: for a request in the background,
    the session beside it; otherwise the call that started an agent.

    `others`: samples of the same tenant. `one_run`: they are of one run of an agent, so that equal
    texts are evidence without ids.
    """
    if sample.kind == "background":
        beside = [other for other in others if _is_beside(other, sample)]
        return _newest_turn(sample, beside, "background") or _first_turn(beside, "background")

    parent = sample.client.parent
    of_parent = [other for other in others if parent and other.client.session == parent]
    if of_parent:
        call = _call_of(sample, of_parent, others, is_whole=False)
        return call or _newest_turn(sample, of_parent, "helper")
    alike = [other for other in others if one_run or _may_be_one_session(other, sample)]
    return _call_of(sample, alike, others, is_whole=True)


def _is_beside(other: OpenSample, sample: OpenSample) -> bool:
    sessions = {sample.client.session, sample.client.parent} - {None}
    return other.kind != "background" and (not sessions or other.client.session in sessions)


def _may_be_one_session(other: OpenSample, sample: OpenSample) -> bool:
    sessions = {sample.client.session, other.client.session} - {None}
    return len(sessions) < 2


def _newest_turn(
    sample: OpenSample, others: Iterable[OpenSample], cause: ParentCause
) -> Parent | None:
    turns = _turns_before(sample, others)
    if not turns:
        return None
    other, turn = turns[-1]
    return Parent(other.id, turn.span.turn, cause)


def _first_turn(others: Iterable[OpenSample], cause: ParentCause) -> Parent | None:
    """The first turn of several samples: that of a session of which the title was asked for at
    once."""
    first = min(others, key=lambda other: other.began, default=None)
    return None if first is None else Parent(first.id, first.turns[0].span.turn, cause)


def _turns_before(
    sample: OpenSample, others: Iterable[OpenSample]
) -> list[tuple[OpenSample, AddedTurn]]:
    """The turns of other samples that began before a sample, oldest first."""
    turns: list[tuple[OpenSample, AddedTurn]] = []
    for other in others:
        if other is not sample:
            turns += [(other, turn) for turn in other.turns if turn.span.time <= sample.began]
    turns.sort(key=lambda entry: entry[1].span.time)
    return turns


def _call_of(
    sample: OpenSample,
    callers: Iterable[OpenSample],
    others: Iterable[OpenSample],
    *,
    is_whole: bool,
) -> Parent | None:
    """The call that started an agent. Of several that fit, the newest one that started no other.

    `is_whole`: one of the agent's first texts is an argument; otherwise they may contain it.
    """
    question = [squeeze(text) for text in sample.question]
    fitting: list[Parent] = []
    for other, turn in _turns_before(sample, callers):
        for call in turn.written:
            if isinstance(call, Call) and _is_started_by(question, call, is_whole):
                fitting.append(Parent(other.id, turn.span.turn, "helper", call.call_id))
    taken = {other.parent for other in others if other is not sample}
    free = [parent for parent in fitting if parent not in taken]
    newest = [*fitting[-1:], *free[-1:]]
    return newest[-1] if newest else None


def _is_started_by(question: Sequence[str], call: Call, is_whole: bool) -> bool:
    for text in map(squeeze, texts_in(call.arguments)):
        if text and text in question:
            return True
        if not is_whole and len(text) >= MIN_TEXT and any(text in asked for asked in question):
            return True
    return False


def texts_in(arguments: str) -> list[str]:
    """The strings in a call's arguments, at any depth; of text that is not JSON, the whole."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return [arguments]
    return [*_strings(value)]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)


def has_summary(question: Iterable[str], writer: OpenSample) -> bool:
    """Whether a question contains what another sample's last turn wrote, without calls, as a
    summary of its history."""
    last = writer.turns[-1]
    if any(isinstance(part, Call) for part in last.written):
        return False
    written = "".join(part.text for part in last.written if isinstance(part, Text))
    summary = _bare(written.rpartition(_THOUGHTS)[2])
    asked = _bare("\n".join(question))
    if len(summary) < MIN_TEXT:
        return False
    return summary[:PROBE] in asked or summary[-PROBE:] in asked


def begins_with_summary(
    answers: Sequence[bytes], writer: OpenSample, others: Iterable[OpenSample]
) -> bool:
    """Whether the first answer of a history is what another sample's last turn wrote as a summary:
    after a history of its own, or when asked about a transcript of one.

    `answers`: as in `SampledTurn`. `others`: samples of the same session.
    """
    *earlier, last = writer.turns
    if answers[:1] != [last.digest] or any(turn.digest == last.digest for turn in earlier):
        return False
    if last.has_history:
        return True
    return any(_is_quoted(other.question, writer.question) for other in others)


def _is_quoted(question: Sequence[str], asked: Sequence[str]) -> bool:
    """Whether a text contains a line of a question, and is not that text again."""
    whole = squeeze("\n".join(asked))
    for text in question:
        lines = [] if text in asked else map(squeeze, text.splitlines())
        if any(len(line) >= MIN_TEXT and line in whole for line in lines):
            return True
    return False


def _bare(text: str) -> str:
    """A text without tags, which clients remove or replace, and without white space."""
    return squeeze(_TAG.sub("", text))
