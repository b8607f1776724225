"""A tag of reasoning in running text counts at the beginning of a sentence, and is only mentioned as
a word or in quotes."""

from services.families import open_parser
from services.families.grammar.mentions import is_mention
from tests.kit.every import for_rows


@for_rows(
    [
        ("word", "", False),  # nothing sets it apart
        ("a ", "", True),  # a word of a sentence
        (". ", "", False),
        ("。 ", "", False),
        (". ", " ", True),
        (". ", ",", True),
        ("  ", "", True),
        (".\t", "", True),
        ("“", "", True),
        ("(", "", True),
        ("word", "”", True),
        ("", "", True),
    ]
)
def test_signs_around_a_tag_decide(before: str, after: str, mentioned: bool) -> None:
    assert is_mention(before, after) is mentioned


@for_rows(
    [
        ("Done. <think>so</think>", ["text", "reasoning"]),
        ("好。 <think>so</think>", ["text", "reasoning"]),
        ("Done.  <think>so</think>", ["text"]),
        ("Done.\t<think>so</think>", ["text"]),
        ("A “<think>so</think>", ["text"]),
        ("The <think>so</think>", ["text"]),
        ("The\n<think>so</think>", ["text", "reasoning"]),
    ]
)
def test_parser_opens_a_thought_only_where_its_tag_counts(text: str, kinds: list[str]) -> None:
    parser = open_parser("hermes")
    events = parser.feed(text)
    assert [event.kind for event in events if hasattr(event, "kind")] == kinds
