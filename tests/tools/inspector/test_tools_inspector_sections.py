"""The conversation of a session, as the page shows it."""

import json
from pathlib import Path

from schemas.conversation import Call, Conversation, RawPrompt, Reasoning, Text, ToolSpec
from schemas.events import PromptImage
from schemas.token_ids import pack_ids
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend
from tests.kit.conversations import user
from tests.tools.inspector.by_hand import TOOLS, Bus, answer, asked, result
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.sections import Sections, TurnSection
from turnwire_tools.inspector.tokens import Vocabularies
from turnwire_tools.inspector.turns import InspectedTurn

TASK = Call("toolu_9", "Task", json.dumps({"prompt": "Search the\nhistory.", "n": 1}))
PROMPT = list(range(1000, 1200))


def section(fold: Fold, turn: InspectedTurn) -> TurnSection:
    return Sections(fold, Vocabularies()).section(turn)


def test_a_section_has_what_a_turn_adds_and_what_it_answers(bus: Bus) -> None:
    first = bus.turn(asked(user("Q")), PROMPT, [1, 2, 3, 4], Reasoning("Hm"), TASK)
    history = (user("Q"), answer(Reasoning("Hm"), TASK), result(TASK, "Done."))
    ids = [*PROMPT, 1, 2, 3, 4, *range(50)]
    second = bus.turn(asked(*history), ids, [5], Text("Yes."), cached=204)
    one, two = section(bus.fold, first), section(bus.fold, second)
    assert [part.name for part in one.tools] == ["Bash", "Read"]
    assert [part.kind for part in one.answer] == ["reasoning", "tool_use"]
    placed = [*one.system, *one.tools, *one.parts]
    assert sum(part.tokens or 0 for part in placed) == len(PROMPT)
    assert sum(part.tokens or 0 for part in one.answer) == first.output
    assert (two.system, two.tools) == ([], [])  # as before
    (given,) = two.parts
    assert (given.kind, given.text, given.start, given.tokens) == ("result", "Done.", 204, 50)


def test_the_parts_and_the_template_are_all_of_a_prompt(bus: Bus, demo_dir: Path) -> None:
    backend = load_backend(str(demo_dir), trust_remote_code=False)
    around = "<system> These are the tools of the agent, which you call as follows:"
    prompt = backend.encode(f"{around} Bash Read You are an agent. {around} Where is it? {around}")
    first = bus.turn(asked(user("Where is it?")), prompt.ids, [1, 2], Text("x"), tool_tokens=9)
    history = (user("Where is it?"), answer(Text("x")), user("Thank you."))
    ids = [*prompt.ids, 1, 2, *backend.encode(f"{around} Thank you. {around}").ids]
    turns = [first, bus.turn(asked(*history), ids, [3], Text("y"))]

    made = Sections(bus.fold, Vocabularies(of_others=Vocabulary(backend)))
    one, two = map(made.section, turns)
    assert all(part.exact for part in (*one.system, *one.parts, *two.parts))
    assert one.rest
    assert two.rest
    of_parts = sum(part.tokens or 0 for part in (*one.system, *one.parts)) + one.tools_tokens
    assert of_parts + one.rest == len(prompt.ids)
    assert sum(part.tokens or 0 for part in one.tools) == one.tools_tokens
    assert sum(part.tokens or 0 for part in two.parts) + two.rest == len(ids) - len(prompt.ids) - 2


def test_the_parts_after_a_changed_beginning_are_all_that_was_computed(bus: Bus) -> None:
    bus.turn(asked(user("Why? " * 100), tools=[]), range(1000), [1, 2], Text("x"))
    history = (user("Why? " * 100), answer(Text("x")), user("And now?"))
    ids = [*range(200), 5000, *range(201, 1000), 1, 2, *range(6000, 6030)]
    changed = asked(*history, tools=[], system=[Text("You are an agent!")])
    turn = bus.turn(changed, ids, [3], Text("y"), cached=192)
    found = section(bus.fold, turn)
    assert found.rest is not None
    assert found.cost is not None
    assert found.difference is not None
    (question,) = found.parts
    computed = len(ids) - 192
    again = found.cost.changed + found.cost.lost
    assert question.tokens
    assert found.rest == computed - again - question.tokens > 20


def test_the_tokens_of_reasoning_are_those_that_the_turn_counts(bus: Bus) -> None:
    parts = (Reasoning("A long thought. " * 20), Text("Yes."), TASK)
    turn = bus.turn(asked(user("Q")), PROMPT, range(40), *parts, reasoning=18)
    thought, *others = section(bus.fold, turn).answer
    assert (thought.tokens, thought.exact) == (18, True)
    assert sum(part.tokens or 0 for part in others) == turn.output - 18
    assert not any(part.exact for part in others)


def test_instructions_are_shown_again_where_they_changed(bus: Bus) -> None:
    bus.turn(asked(user("Q")), PROMPT, [1], TASK)
    changed = asked(user("Q"), answer(TASK), result(TASK, "x"), system=[Text("New.")])
    found = section(bus.fold, bus.turn(changed, range(5000, 5100), [2], Text("y")))
    assert [part.text for part in found.system] == ["New."]
    assert found.difference is not None
    assert found.difference.cause == "system"


def test_held_turns_and_images_have_what_the_bus_says_of_them(bus: Bus) -> None:
    first = bus.turn(asked(user("Q"), session="a"), PROMPT, [1], Text("x"))
    images = [PromptImage("4d1e" * 10, 40, 100)]
    name = bus.begin(
        asked(user("Q"), session="b"), PROMPT, held_for=first.id, held_s=0.25, images=images
    )
    found = section(bus.fold, bus.fold.turns[name])
    assert (found.held_for, found.held_s) == (first.id, 0.25)
    assert bus.fold.turns[name].addition.images == images


def test_a_prompt_of_completions_is_its_only_part(bus: Bus) -> None:
    for raw, text, facts in (
        (RawPrompt("Once upon a time"), "Once upon a time", ""),
        (RawPrompt(token_ids=pack_ids(PROMPT)), "", "200 token ids"),
    ):
        turn = bus.turn(Conversation("m", [], prompt=raw), PROMPT, [1], Text("x"), cached=64)
        found = section(bus.fold, turn)
        (part,) = found.parts
        assert (part.kind, part.text, part.facts) == ("prompt", text, facts)
        assert (part.start, part.tokens, part.exact, found.rest) == (0, len(PROMPT), True, 0)
        assert (turn.label, turn.asks) == (text or facts, True)


def test_a_deferred_tool_has_no_tokens_in_the_prompt(bus: Bus) -> None:
    tools = [ToolSpec("search_mail", "x" * 9000, deferred=True), *TOOLS]
    turn = bus.turn(asked(user("Q"), tools=tools), PROMPT, [1], Text("x"), tool_tokens=60)
    deferred, *others = section(bus.fold, turn).tools
    assert (deferred.name, deferred.facts, deferred.tokens) == ("search_mail", "deferred", None)
    assert sum(part.tokens or 0 for part in others) == 60


def test_long_texts_are_cut_in_a_section(bus: Bus) -> None:
    turn = bus.turn(asked(user("q" * 50_000)), PROMPT, [1], Text("a" * 50_000))
    found = section(bus.fold, turn)
    for part in (*found.parts, *found.answer):
        assert len(part.text) < 10_000
        assert part.length == 50_000
