"""Where the items of a conversation are in its prompt."""

from turnwire_tools.inspector.conversation import Item
from turnwire_tools.inspector.places import Place, PromptText, estimated, located

ITEMS = [
    Item("system", "You are an agent.", 17),
    Item("tool", "Runs a command.\n\n{}", 19, name="Bash"),
    Item("user", "Find it, please.", 16),
]
TEXT = b"<s>You are an agent.\nTools: Bash: Runs a command. (command)\n<u>Find it, please.</u>"


def test_estimates_divide_a_stretch_by_length() -> None:
    places = estimated(ITEMS, 100, 152)
    assert [(place.start, place.tokens) for place in places] == [(100, 17), (117, 19), (136, 16)]
    assert estimated([Item("user")], 5, 9) == [Place(5, 0, exact=False)]
    assert estimated([], 5, 9) == []


def test_texts_are_found_among_the_tokens() -> None:
    """Here each token is two bytes, and the stretch begins at token 1000 of the prompt."""
    ends = [*range(2, len(TEXT), 2), len(TEXT)]
    text = PromptText(TEXT, ends, 1000)
    found = located(ITEMS, estimated(ITEMS, 1000, 1042), text)
    system, tool, question = (
        TEXT[2 * (place.start - 1000) : 2 * (place.start - 1000 + place.tokens)] for place in found
    )
    assert b"You are an agent." in system
    assert len(system) <= 17 + 3
    assert b"Runs a command. (command)" in tool or b"Bash" in tool
    assert b"Find it, please." in question
    assert all(place.exact for place in found)


def test_a_text_that_is_not_found_keeps_its_estimate() -> None:
    text = PromptText(b"something else", [4, 9, 14])
    estimates = estimated(ITEMS, 0, 3)
    assert located(ITEMS, estimates, text) == estimates
