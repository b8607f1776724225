"""What the page shows of turns and sessions, of the bus and of recordings of `turnwire tap`."""

import socket
from pathlib import Path
from typing import Any

import msgspec

from schemas import subjects
from schemas.conversation import Call, Client, Text
from schemas.errors import EngineFailed
from schemas.events import Failed
from schemas.frames import EventFrame, TokenFrame
from schemas.requests import GenerateRequest, TurnRequest, encode_generate
from services.runtime.request_headers import AllowedHosts
from tests.tools.inspector.by_hand import Bus, answer, asked, block_events, result, user
from turnwire_tools.inspector.command import InspectorFlags, addresses, required_key
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.recording import read
from turnwire_tools.inspector.turns import Row
from turnwire_tools.inspector.views import InspectedTurnView, PromptSegment, segments_of, turn_view
from turnwire_tools.tap.messages import line_of
from turnwire_tools.tap.recorder import BusRecorder

LS = Call("toolu_1", "Bash", '{"command": "ls"}')
SUBJECTS: dict[Any, str] = {
    TurnRequest: subjects.turn("m", "preprocessor-1"),
    TokenFrame: subjects.tokens("parser-1"),
    EventFrame: subjects.events("frontend-1"),
}


class Recording(Bus):
    """A bus with a tap on it."""

    def __init__(self, fold: Fold) -> None:
        super().__init__(fold)
        self.recorder = BusRecorder()
        self.turns, self.messages = BusRecorder.head(), b""

    def send(self, message: Any, receiver: str = "") -> None:
        super().send(message, receiver)
        if isinstance(message, GenerateRequest):
            subject, data = subjects.generate("m", receiver), encode_generate(message)
        else:
            subject, data = SUBJECTS[type(message)], msgspec.json.encode(message)
        self.messages += msgspec.json.encode(line_of(self.now, subject, data)) + b"\n"
        self.turns += b"".join(self.recorder.take(message, self.now, receiver))


def session(bus: Bus) -> list[InspectedTurnView]:
    """Two turns; the second one's instructions changed."""
    said = Text("I look.")
    first = asked(user("Question"), session=None)
    bus.turn(first, range(1000, 1200), [1, 2, 3], said, LS)
    history = (user("Question"), answer(said, LS), result(LS, "a.txt"))
    now = asked(*history, session=None, system=[Text("New.")])
    bus.turn(now, range(5000, 5300), [4], Text("Done."), reused=7, recall="moved", cached=16)
    return views(bus.fold)


def views(fold: Fold) -> list[InspectedTurnView]:
    return [turn_view(fold, turn) for turn in fold.turns.values()]


def played(text: bytes) -> list[InspectedTurnView]:
    fold = Fold()
    for at, receiver, message in read("file", text.decode()):
        fold.take(message, at, receiver)
    return views(fold)


def test_recordings_give_the_same_turns_without_their_client(fold: Fold) -> None:
    bus = Recording(fold)
    live = session(bus)
    assert played(bus.messages) == live

    replayed = played(bus.turns)
    for one, other in zip(live, replayed, strict=True):
        for name in ("difference", "segments", "blocks", "recall", "finish", "cost"):
            assert getattr(one, name) == getattr(other, name), name
        for name in Row.__struct_fields__:
            assert getattr(other, name) == ("" if name == "client" else getattr(one, name)), name
    assert replayed[1].difference is not None
    assert replayed[1].difference.reason == "system text 1 changed"


def test_a_recording_has_the_output_of_a_turn_that_failed(fold: Fold) -> None:
    bus = Recording(fold)
    turn = bus.begin(asked(user("Question")), range(9))
    bus.write(turn, [1, 2, 3])
    bus.events(turn, *block_events(0, Text("Hello")), tokens=3)
    bus.events(turn, Failed(EngineFailed("gone").info), tokens=3)
    outputs = [view.output for view in (*views(fold), *played(bus.messages), *played(bus.turns))]
    assert outputs == [3, 3, 3]


def test_a_recording_has_the_tree_of_agents_and_no_ids_of_clients(fold: Fold) -> None:
    bus = Recording(fold)
    agent = Client("secret-session", "claude-cli/2.1", "alice")
    helper = Client(
        "secret-session/1", "claude-cli/2.1", "alice", parent="secret-session", kind="helper"
    )
    title = Client("secret-session", "claude-cli/2.1", "alice", kind="background")
    bus.turn(asked(user("Question"), client=agent), range(9), [1], LS)
    bus.turn(asked(user("Task"), client=helper), range(9), [2], Text("Done."))
    bus.turn(asked(user("Question"), client=title, tools=[]), range(9), [3], Text("A title"))
    assert b"secret" not in bus.turns
    assert b"alice" not in bus.turns
    first, second, third = played(bus.turns)
    assert [view.kind for view in (first, second, third)] == ["main", "helper", "background"]
    assert second.parent == third.parent == first.session
    assert third.title == "A title"


def test_a_key_is_required_on_any_other_than_a_loopback_address(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert required_key(InspectorFlags(host=host)) is None
    keys = {required_key(InspectorFlags(host=host)) for host in ("0.0.0.0", "10.0.0.1")}
    assert len(keys - {None}) == 2  # a new one each time
    file = tmp_path / "key"
    file.write_text("a-key-of-sixteen-characters\n")
    assert required_key(InspectorFlags(key_file=file)) == "a-key-of-sixteen-characters"


def test_addresses_are_those_that_browsers_reach() -> None:
    every = AllowedHosts(["*"])
    assert addresses("127.0.0.1", 81, None, every) == ["http://127.0.0.1:81/"]
    assert addresses("fd00::1", 81, "k", every) == ["http://[fd00::1]:81/?key=k"]
    first, *others = addresses("0.0.0.0", 81, "k", every)
    assert first == "http://127.0.0.1:81/?key=k"
    by_name = f"http://{socket.gethostname()}:81/?key=k"
    assert others[0] == by_name
    assert by_name not in addresses("0.0.0.0", 81, "k", AllowedHosts(["llm.example"]))


HISTORY = (user("Q"), answer(LS), result(LS, "a.txt"))


def test_a_prompt_is_cut_into_cached_original_and_encoded(bus: Bus) -> None:
    bus.turn(asked(user("Q")), range(1000, 1200), [1, 2, 3, 4], LS)
    ids = [*range(1000, 1200), 1, 2, 3, 4, *range(2000, 2300)]
    turn = bus.turn(asked(*HISTORY), ids, [5], Text("x"), cached=192, reused=204, recall="reused")
    assert segments_of(turn, bus.fold.ancestors(turn)) == [
        PromptSegment(0, 192, True, "ledger"),
        PromptSegment(192, 200, False, "ledger"),
        PromptSegment(200, 204, False, "ledger", 1),
        PromptSegment(204, 504, False, "encoded"),
    ]
