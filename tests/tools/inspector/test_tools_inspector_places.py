"""Where the items of a conversation are in its prompt."""

from turnwire_tools.inspector.conversation import Item
from turnwire_tools.inspector.places import Place, PromptText, estimated, located, scaled

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
    assert [place.exact for place in found] == [True, False, True]


def test_the_last_of_equal_tools_is_as_long_as_the_others() -> None:
    """A template writes more of a tool than its description, in its own form."""
    form = b"name: Bash, description: Runs a command., parameters: none\n"
    data = b"Tools:\n" + 3 * form + b"<u>Find it, please.</u>"
    tools = [ITEMS[1]] * 3
    found = located(tools, estimated(tools, 0, 60), PromptText(data, [*range(1, len(data) + 1)]))
    assert [place.tokens for place in found] == [len(form)] * 3
    assert not any(place.exact for place in found)


def test_scaled_places_take_all_tokens() -> None:
    places = [Place(at, 67, exact=True) for at in (7, 74, 141)]
    assert [place.tokens for place in scaled(places, 200)] == [67, 66, 67]
    assert [place.start for place in scaled(places, 200)] == [7, 74, 141]
    assert scaled([], 5) == []


def test_a_text_that_is_not_found_keeps_its_estimate() -> None:
    text = PromptText(b"something else", [4, 9, 14])
    estimates = estimated(ITEMS, 0, 3)
    assert located(ITEMS, estimates, text) == estimates
