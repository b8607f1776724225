"""Finds the turn that a sample goes back to: the call that started a helper, the summary that
replaced a history, the session that a title is of. Pure.

Clients that send ids of their sessions and of their agents' parents are believed. Otherwise texts
decide: an agent's first message is an argument of the call that started it, and a summary comes
back in the first message of the conversation that goes on with it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from services.ledger.turns.keys import squeeze
from services.rollouts.call_texts import CallTexts, text_key, texts_in
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
    """The parent of a sample that begins a conversation: for a request in the background, the
    session beside it; otherwise the call that started an agent.

    `others`: samples of the same tenant. `one_run`: they are of one run of an agent, so that equal
    texts are evidence without ids.
    """
    if sample.kind == "background":
        beside = [other for other in others if _is_beside(other, sample)]
        return _newest_turn(sample, beside, "background") or _first_turn(beside, "background")

    parent = sample.client.parent
    of_parent = [other for other in others if parent and other.client.session == parent]
    if of_parent:
        return (
            _call_of(sample, of_parent, others)
            or _quoted_call_of(sample, of_parent, others)
            or _newest_turn(sample, of_parent, "helper")
        )
    alike = [other for other in others if one_run or _may_be_one_session(other, sample)]
    return _call_of(sample, alike, others)


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
    """The first turn of several samples: a client may ask for a session's title at once."""
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
    sample: OpenSample, callers: Iterable[OpenSample], others: Iterable[OpenSample]
) -> Parent | None:
    """The call that has one of an agent's first texts as an argument. Of several, the newest that
    started no other agent."""
    question = {text_key(squeeze(text)) for text in sample.question}
    fitting = [parent for parent, texts in _calls_before(sample, callers) if question & texts.keys]
    return _newest_free(fitting, sample, others)


def _quoted_call_of(
    sample: OpenSample, callers: Iterable[OpenSample], others: Iterable[OpenSample]
) -> Parent | None:
    """The call with an argument that is part of an agent's first texts, as `_call_of`."""
    question = squeeze("\n".join(sample.question))
    fitting: list[Parent] = []
    for parent, texts in _calls_before(sample, callers):
        arguments = map(squeeze, texts_in(texts.call.arguments))
        if any(len(text) >= MIN_TEXT and text in question for text in arguments):
            fitting.append(parent)
    return _newest_free(fitting, sample, others)


def _calls_before(
    sample: OpenSample, callers: Iterable[OpenSample]
) -> Iterator[tuple[Parent, CallTexts]]:
    """The calls of turns that began before a sample, oldest first."""
    for caller, turn in _turns_before(sample, callers):
        for texts in turn.calls:
            yield Parent(caller.id, turn.span.turn, "helper", texts.call.call_id), texts


def _newest_free(
    fitting: Sequence[Parent], sample: OpenSample, others: Iterable[OpenSample]
) -> Parent | None:
    taken = {other.parent for other in others if other is not sample}
    free = [parent for parent in fitting if parent not in taken]
    newest = [*fitting[-1:], *free[-1:]]
    return newest[-1] if newest else None


def has_summary(asked: str, writer: OpenSample) -> bool:
    """Whether a question contains what another sample's last turn wrote, without calls, as a
    summary of its history.

    `asked`: the question's text (`bare_text`).
    """
    last = writer.turns[-1]
    summary = bare_text(last.text.rpartition(_THOUGHTS)[2])
    if last.calls or len(summary) < MIN_TEXT:
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


def bare_text(text: str) -> str:
    """A text without tags, which clients remove or replace, and without white space."""
    return squeeze(_TAG.sub("", text))
