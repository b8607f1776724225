"""Tests the note about media that a model cannot read: its place in a turn, and its removal."""

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    OutputFormat,
    Part,
    Reasoning,
    Sampling,
    Text,
)
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStop, Delta, Failed, FinishReason, TurnEvent
from services.frontend.turns.compaction import request_summary
from services.frontend.turns.notice import (
    MediaKind,
    NoticeSink,
    make_notice,
    may_have_notice,
    without_notices,
)
from tests.kit.events import call, finish, reasoning, text
from tests.kit.every import for_each
from tests.kit.sinks import RecordingSink

IMAGES = make_notice({"image"})


def through(events: list[TurnEvent], *, singly: bool) -> list[TurnEvent]:
    """Returns the events after a sink that adds a note."""
    kept = RecordingSink()
    sink = NoticeSink(kept, IMAGES)
    for batch in [[event] for event in events] if singly else [events]:
        sink.push(batch)
    return kept.events


def test_note_ends_the_text_of_a_turn_without_calls() -> None:
    events = [*reasoning(0, "Hm."), *text(1, "I see."), finish(2)]
    *before, stop, end = events
    assert isinstance(stop, BlockStop)
    noted = [Delta(1, stop.length, IMAGES), BlockStop(1, True, stop.length + len(IMAGES))]
    for singly in (True, False):
        assert through(events, singly=singly) == [*before, *noted, end], singly


@for_each(
    [
        [*text(0, "I look."), *call(1, "Read", "{}", call_id="c1"), finish(2)],
        [*call(0, "Read", "{}", call_id="c1"), *text(1, "I look."), finish(2)],
        [*text(0, "I see."), *reasoning(1, "Hm."), finish(2)],
        [*text(0, "I se"), finish(1, FinishReason.LENGTH)],
        [*text(0, "I se"), Failed(ErrorInfo(ErrorKind.ENGINE, "gone"))],
        [finish(0)],
    ]
)
def test_every_other_turn_is_unchanged(events: list[TurnEvent]) -> None:
    assert through(events, singly=True) == through(events, singly=False) == events


def test_returned_note_is_removed_and_prevents_another() -> None:
    kinds: set[MediaKind] = {"image", "document", "audio"}
    text = make_notice(kinds)
    made = Message("assistant", [Reasoning("Hm."), Text("I see. "), Call("c", "Read", "{}")])
    back: list[Part] = [Reasoning("Hm."), Text("I see. " + text), Call("c", "Read", "{}")]
    asked = Message("user", [Text("What is it?" + text)])  # quoted by the user: stays
    conversation = Conversation("m", [asked, Message("assistant", back, ids=["msg_1"]), asked])
    assert without_notices(conversation) == (
        Conversation("m", [asked, Message("assistant", made.parts, ids=["msg_1"]), asked]),
        frozenset(kinds),
    )
    assert conversation.messages[1].parts == back  # others may hold it


def test_answers_for_programs_get_no_note() -> None:
    assert may_have_notice(Conversation("m", []))
    assert not may_have_notice(Conversation("m", [], format=OutputFormat("json_object")))
    assert not may_have_notice(Conversation("m", [], sampling=Sampling(logprobs=0)))
    assert not may_have_notice(Conversation("m", [], sampling=Sampling(return_token_ids=True)))
    assert not may_have_notice(request_summary(Conversation("m", [])))
