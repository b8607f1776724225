"""What each request adds to its session, and how much of it is kept."""

import time

import pytest

from schemas.conversation import Call, Media, Message, Part, Reasoning, Result, Text
from tests.kit.conversations import user
from tests.tools.inspector.by_hand import TOOLS, Bus, answer, asked, result
from turnwire_tools.inspector.conversation import ADDED, MAX_TEXT, Item
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.turns import InspectedTurn

LS = Call("toolu_1", "Bash", '{"command": "ls"}')
HISTORY = (user("Q"), answer(Reasoning("I look."), LS), result(LS, "a.txt"))


def items(turn: InspectedTurn) -> list[Item]:
    return turn.addition.items


def kinds(turn: InspectedTurn) -> list[tuple[str, str]]:
    return [(item.kind, item.text) for item in items(turn)]


def test_a_request_adds_what_its_session_did_not_have(bus: Bus) -> None:
    first = bus.turn(asked(user("Q")), range(9), [1], Reasoning("I look."), LS)
    second = bus.turn(asked(*HISTORY), range(20), [2], Text("There is a.txt."))
    assert kinds(first) == [("user", "Q")]
    assert kinds(second) == [("result", "a.txt")]
    assert items(second)[0].name == "Bash"
    assert second.addition.head is first.addition.head


def test_an_edited_message_is_added_again_and_a_summary_replaces_the_history(bus: Bus) -> None:
    bus.turn(asked(user("Q")), range(9), [1], LS)
    edited = bus.turn(asked(user("Edited"), *HISTORY[1:]), range(20), [2], Text("Yes."))
    assert kinds(edited) == [("user", "Edited"), ("result", "a.txt")]
    assert edited.addition.rewritten == 1
    long = asked(user("Edited"), *HISTORY[1:], answer(Text("Yes.")), user("More"))
    bus.turn(long, range(30), [3], Text("No."))
    summary = answer(Text("Summary: there is a.txt."))
    cut = bus.turn(asked(user("Edited"), summary, user("Go on")), range(9), [4])
    assert kinds(cut) == [("text", "Summary: there is a.txt."), ("user", "Go on")]
    assert cut.addition.rewritten == 4


def test_a_message_that_is_inserted_or_left_out_changes_no_other_one(bus: Bus) -> None:
    history: list[Message] = []
    for number in range(5):
        history.append(user(f"Q{number}"))
        bus.turn(asked(*history), range(9 + number), [1], Text(f"A{number}"))
        history.append(answer(Text(f"A{number}")))
    history[2:2] = [user("A note")]
    longer = bus.turn(asked(*history, user("Q5")), range(30), [1], Text("A5"))
    assert kinds(longer) == [("user", "A note"), ("user", "Q5")]
    assert longer.addition.rewritten == 0
    history += [user("Q5"), answer(Text("A5"))]
    del history[3:5]
    shorter = bus.turn(asked(*history, user("Q6")), range(40), [1], Text("A6"))
    assert kinds(shorter) == [("user", "Q6")]
    assert shorter.addition.rewritten == 2


def test_a_question_that_is_repeated_is_new(bus: Bus) -> None:
    bus.turn(asked(user("Note"), user("Go on")), range(9), [1], Text("A"))
    messages = (user("Note"), user("Go on, edited"), answer(Text("A")), user("Go on"))
    turn = bus.turn(asked(*messages), range(20), [1], Text("B"))
    assert kinds(turn) == [("user", "Go on, edited"), ("user", "Go on")]


def test_images_of_a_result_follow_it(bus: Bus) -> None:
    picture = Media("image", "image/png", 2000, hash="4d1e", width=64, height=32)
    shot = Result(LS.call_id, [Text("Taken."), picture], is_error=False)
    bus.turn(asked(user("Q")), range(9), [1], LS)
    turn = bus.turn(asked(*HISTORY[:2], Message("tool", [shot])), range(20), [2])
    text, image = items(turn)
    assert (text.kind, text.text, text.error) == ("result", "Taken.", False)
    assert (image.kind, image.image, image.call_id) == ("media", "4d1e", LS.call_id)
    assert image.facts == "image/png, 64 × 32, 2.0 kB"


def test_text_that_a_client_adds_to_a_question_is_marked(bus: Bus) -> None:
    parts: list[Part] = [Text("<system-reminder>\nRules\n</system-reminder>"), Text("Q <b>?</b>")]
    turn = bus.turn(asked(Message("user", parts)), range(9), [1])
    assert [item.facts for item in items(turn)] == [ADDED, ""]
    assert turn.label == "Q <b>?</b>"


@pytest.mark.parametrize("text", [f"x{' ' * 40_000}y", "<a>" * 15_000, "<a></a>" * 6000 + "<b>"])
def test_the_time_for_a_question_grows_with_its_length_only(bus: Bus, text: str) -> None:
    start = time.process_time()
    bus.turn(asked(user(text)), range(9), [1], Text("x"))
    assert time.process_time() - start < 2.0  # 0.01; one that grew with the square took 13 s


def test_instructions_of_codex_are_no_question(bus: Bus) -> None:
    added = user("# AGENTS.md instructions for /repo\n\nBe brief.")
    turn = bus.turn(asked(added, user("Q")), range(9), [1])
    assert [item.facts for item in items(turn)] == [ADDED, ""]
    assert turn.label == "Q"


def test_without_texts_no_item_has_words(fold: Fold) -> None:
    bus = Bus(Fold(texts=False))
    turn = bus.turn(asked(user("Secret question")), range(9), [1], Text("Secret"))
    head = turn.addition.head
    kept = [*items(turn), *head.system, *head.tools]
    assert [item.text for item in kept] == ["", "", "", ""]
    assert [item.name for item in head.tools] == [tool.name for tool in TOOLS]
    assert items(turn)[0].length == len("Secret question")
    assert turn.label == ""


def test_memory_for_texts_is_bounded_and_counts_a_head_once() -> None:
    fold = Fold(max_bytes=600_000)
    bus = Bus(fold)
    system = [Text("s" * 100_000)]
    long = "w" * (MAX_TEXT // 4)
    for number in range(40):
        question = user(f"{number} {long}")
        bus.turn(asked(question, session=f"s{number}", system=system), range(9), [1], Text("x"))
    kept = list(fold.turns.values())
    heads = {id(turn.addition.head) for turn in kept}
    assert len(heads) == 1
    assert len(kept) == (600_000 - 100_000) // len(long)
    huge = bus.turn(asked(user("q" * (MAX_TEXT + 5)), session="huge"), range(9), [1])
    (item,) = items(huge)
    assert (len(item.text), item.length) == (MAX_TEXT, MAX_TEXT + 5)
