"""Budgets of reasoning tokens, read by the real parser, for every family."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from schemas.events import BlockStart, BlockStop, Finish, FinishReason, spans_between
from schemas.requests import ThoughtBudget, ThoughtSpelling
from schemas.token_ids import pack_ids, unpack_ids
from services.families import families, find_family, open_parser
from services.families.grammar.mentions import SIGNS_BEFORE_TAGS
from services.families.thought_markers import thought_markers
from services.tokenization.detokenizer import FamilyVocabulary
from services.tokenization.marker_tokens import marker_tokens
from services.tokenization.prompt_tokenizer import PromptTokenizer
from services.tokenization.tokenizer_files import LoadedTokenizer, describe
from services.worker.thinking.thought_counter import ThoughtCounter
from tests.kit.every import for_each, for_rows
from tests.kit.examples import chances
from tests.kit.parser_cases import Block, opened, vectors
from tests.worker.thinking.budgeted_turns import Turn, budget_of, read, thought, vocabulary_of

LIMIT = 64
SENTENCE = "look first then weigh each case (a < b), x = {y}; `code` 12 [z] and so on. No! é 船"
WORDS = [*SENTENCE.split(), "Why?\n", "\n\n"]
THINKING = [name for name, family in families().items() if thought_markers(family) is not None]
Tokenizers = Callable[[bool], PromptTokenizer]


@pytest.fixture(scope="module")
def tokenizer_of(demo_dir: Path) -> Tokenizers:
    """Two tokenizers for all families: markers are single tokens, or ordinary text."""
    from transformers import AutoTokenizer

    @cache
    def load(single: bool) -> PromptTokenizer:
        loaded = AutoTokenizer.from_pretrained(demo_dir)
        tags = set[str]()
        for one in families().values():
            tags |= {*one.markers, *(one.think or ())}
        added = [tag for tag in tags if " " not in tag and tag.count("<") + tag.count("[") < 2]
        loaded.add_tokens(sorted(added) if single else [])
        return PromptTokenizer(LoadedTokenizer(describe(loaded)))

    return load


@for_each(THINKING)
@pytest.mark.parametrize("single", [True, False])
def test_budget_holds_and_an_answer_follows(
    name: str, single: bool, tokenizer_of: Tokenizers
) -> None:
    tokenizer, family = tokenizer_of(single), families()[name]
    for chance in chances(f"thoughts {name} {single}", 3):
        text = " ".join(chance.choices(WORDS, k=80))
        for in_reasoning in (True, False):
            budget = budget_of(name, tokenizer, LIMIT, in_reasoning)
            written = thought(family, text, in_reasoning) + family.style.write_text("Never.")
            ids = tokenizer.encode(written)
            answer = tokenizer.encode(family.style.write_text("All done."))
            turn = Turn(budget, ids, [answer], steps=(1, 1, 1, 2, 5, 40))
            blocks, end = read(name, tokenizer, turn.stream, in_reasoning)
            assert [block["type"] for block in blocks] == ["reasoning", "text"], blocks
            assert blocks[1]["text"] == "All done."
            # A token with the opener's end and the thought's first text is in the usage only.
            ending = len(unpack_ids(budget.end)) + (not single)
            assert LIMIT <= end.usage.reasoning <= LIMIT + ending
            assert turn.stream.ids[:LIMIT] == ids[:LIMIT]
            assert turn.stream.cached == 7, "the prompt's, not that of the turn so far"
            assert (turn.closed, turn.continued) == (1, 1)


CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
LONG = " and more of it" * 40
END = "\n</think>\n\n"


class Hermes:
    """Turns of a family, all of which begin in a thought."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self.tokenizer = tokenizer
        self.encode = tokenizer.encode

    def turn(self, tokens: int, written: str | Sequence[int], *more: str, **options: Any) -> Turn:
        """A turn with a budget, whose engine writes this, and `more` after its ended thoughts."""
        ids = self.encode(written) if isinstance(written, str) else written
        budget = budget_of("hermes", self.tokenizer, tokens, True)
        return Turn(budget, ids, [self.encode(text) for text in more], **options)

    def read(self, turn: Turn) -> tuple[list[Block], Finish]:
        return read("hermes", self.tokenizer, turn.stream, True)


@pytest.fixture
def hermes(tokenizer_of: Tokenizers) -> Hermes:
    return Hermes(tokenizer_of(True))


def test_thought_of_exactly_its_budget_is_untouched(hermes: Hermes) -> None:
    """Whatever follows it, calls and more thoughts included."""
    written = f"Look first.{END}{CALL}\n<think>\n and then{END}So."
    counter = ThoughtCounter(budget_of("hermes", hermes.tokenizer, 1000, True))
    for token in hermes.encode(written):
        counter.count(token)
    whole = hermes.turn(counter.used, written, steps=(1, 3, 9))
    assert (whole.stream.ids, whole.continued) == (hermes.encode(written), 0)
    assert hermes.turn(counter.used - 1, written).continued == 1


def test_thoughts_of_a_turn_share_the_budget(hermes: Hermes) -> None:
    first, second = " one two three" * 10, " four five six" * 10
    for between in (CALL + "\n", "Text.\n\n  ", f"12{CALL}"):
        turn = hermes.turn(40, f"{first}{END}{between}<think>\n{second}{END}So.", "Done.")
        assert hermes.tokenizer.decode(turn.stream.ids).endswith(END + "Done."), between
        assert 40 <= hermes.read(turn)[1].usage.reasoning <= 40 + 5, between


def test_markers_that_are_mentioned_neither_end_nor_open_a_thought(hermes: Hermes) -> None:
    for mention in ("the <tool_call> tag", "a <think> tag"):
        blocks, end = hermes.read(hermes.turn(LIMIT, f"Of {mention}.{LONG}", "Done."))
        assert [block["type"] for block in blocks] == ["reasoning", "text"]
        assert end.usage.reasoning <= LIMIT + 3
    for mention in ("the <think> tag", "so:\n```\n<think>\n```\n"):
        ids = hermes.encode(f"{END}Here {mention}: {LONG}")
        assert hermes.turn(8, ids).stream.ids == ids, mention


def test_max_tokens_keeps_its_meaning(hermes: Hermes) -> None:
    """At every limit around the end of the thought, also where that does not fit."""
    answer = "Done, and so on and on and on."
    whole = hermes.encode("Look" + LONG)[:20] + hermes.encode(END) + hermes.encode(answer)
    for limit in range(17, 32):
        turn = hermes.turn(20, "Look" + LONG, answer, max_tokens=limit, steps=(3,))
        assert turn.stream.ids == whole[:limit]
        assert turn.stream.finish is not None
        assert turn.stream.finish.reason is (
            FinishReason.LENGTH if limit <= len(whole) else FinishReason.STOP
        )


@for_each(THINKING)
@pytest.mark.parametrize("single", [True, False])
def test_lost_turn_with_several_thoughts_continues_from_any_token(
    name: str, single: bool, tokenizer_of: Tokenizers
) -> None:
    """Also in the middle of the end of a later thought."""
    tokenizer, family = tokenizer_of(single), families()[name]
    short = LONG[:40]
    opening = "\n" + family.style.write_reasoning(short)
    answer = family.style.write_text("Done.").removeprefix(family.style.joint)
    texts = [thought(family, short, True), opening, opening, answer]
    played = [tokenizer.encode(text) for text in texts]
    budget = budget_of(name, tokenizer, 4, True)
    whole = Turn(budget, played[0], played[1:])
    output, ends = whole.stream.ids, whole.ends
    ids, starts = [*played, *[[]] * len(ends)], [0, *ends]
    for at in range(len(output) + 1):
        segment = sum(start <= at for start in starts) - 1
        closing = unpack_ids(budget.answer if segment else budget.end)
        if segment < len(ends) and at > ends[segment] - len(closing):
            rest = ids[segment + 1 :]  # in the end of the thought
        else:
            rest = [ids[segment][at - starts[segment] :], *ids[segment + 1 :]]
        turn = Turn(budget, rest[0], rest[1:], resume=output[:at], steps=(1 + at % 3,))
        assert turn.stream.ids == output, (at, tokenizer.decode(turn.stream.ids))


def test_thought_ends_where_its_budget_is_already_spent(hermes: Hermes) -> None:
    """Before its first token, or in the output of a worker without budgets."""
    ids, end, answer = (hermes.encode(text) for text in ("Look" + LONG, END, "Done."))
    assert hermes.turn(0, ids, "Done.").stream.ids == end + answer
    assert hermes.turn(20, answer, resume=ids[:30]).stream.ids == ids[:30] + end + answer


def test_log_probabilities_stay_with_their_tokens_and_the_end_has_none(hermes: Hermes) -> None:
    ids, answer = hermes.encode("Look" + LONG), hermes.encode("Done.")
    for size in (1, 4, 50):
        chosen = hermes.turn(20, ids, "Done.", logprobs=True, steps=(size,)).stream.logprobs
        assert chosen is not None
        found = [pairs[0][0] if pairs else None for pairs in chosen]
        assert found == [*ids[:20], None, None, None, *answer]
        # Tokens that wait for their meaning keep theirs, also at the turn's end.
        first = hermes.encode("One two</think>So.")[:4]
        stream = hermes.turn(2, first, logprobs=True, steps=(size,)).stream
        assert stream.logprobs is not None
        assert len(stream.logprobs) == len(stream.ids)
        own = [token for token in stream.ids if token in first]
        assert [pairs[0][0] for pairs in stream.logprobs if pairs] == own


def test_weights_stay_with_their_tokens(hermes: Hermes) -> None:
    """Also after the end of a thought."""
    ids, answer = hermes.encode("Look" + LONG), hermes.encode("Done.")
    for size in (1, 4, 50):
        turn = hermes.turn(20, ids, "Done.", updates=True, steps=(size,))
        thought, rest = turn.versions
        found = [
            span.version
            for at in range(len(turn.stream.ids))
            for span in spans_between(turn.stream.weights.spans, at, at + 1)
        ]
        assert (found[:20], found[23:]) == (thought[:20], rest[: len(answer)])
        places = [span.at for span in turn.stream.weights.spans]
        assert places == sorted(set(places))


@for_each(THINKING)
def test_tokens_that_wait_have_the_weights_of_their_own_steps(
    name: str, tokenizer_of: Tokenizers
) -> None:
    """Those of a closer that is several tokens, after a thought of its budget."""
    tokenizer = tokenizer_of(False)
    ids = tokenizer.encode(thought(families()[name], "One two three", True) + "So.")
    for limit in range(1, 8):
        turn = Turn(budget_of(name, tokenizer, limit, True), ids, updates=True)
        if turn.stream.ids == ids:
            spans = turn.stream.weights.spans
            found = [spans_between(spans, at, at + 1)[0].version for at in range(len(ids))]
            assert found == turn.versions[0]


@pytest.mark.parametrize("single", [True, False])
def test_worker_sees_thoughts_where_the_parser_does(single: bool, tokenizer_of: Tokenizers) -> None:
    """In all vectors, but for the tokens of markers: none of an answer's tokens or a call's
    count."""
    for case in vectors():
        name = case["family"]
        tokenizer = tokenizer_of(single)
        if name not in THINKING:
            continue
        budget = budget_of(name, tokenizer, 10**6, case["prompt_ends_in_reasoning"])
        counter = ThoughtCounter(budget)
        parser = opened(case)
        detokenizer = FamilyVocabulary(vocabulary_of(tokenizer), find_family(name)).open()
        wrong = missed = 0
        kind = ""
        for token in tokenizer.encode(case["raw"]):
            counter.count(token)
            for event in parser.feed(detokenizer.step(token)):
                if isinstance(event, BlockStart):
                    kind = event.kind
                elif isinstance(event, BlockStop):
                    kind = ""
            wrong += counter.thinks and kind in ("text", "tool_use")
            missed += kind == "reasoning" and not counter.thinks
        assert wrong <= 12, case
        assert missed <= 40, case


PIECES = [
    "<think>",
    "\n</think>",
    "So",
    "etc.",
    ".",
    "\u3002",
    "\u201c",
    "\u2026",
    " ",
    "  ",
    "\t",
    "\n",
]


@for_rows(
    [
        (["So", ".", " ", "<think>"], True),
        (["So", "\u3002", " ", "<think>"], True),
        (["So", "\u2026", " ", "<think>"], True),
        (["So", ".", "\n", "<think>"], True),
        (["So", "<think>"], True),
        (["So", " ", "<think>"], False),
        (["So", " ", "\u201c", "<think>"], False),
        (["So", ".", "  ", "<think>"], False),
        (["So", ".", "\t", "<think>"], False),
        (["etc.", " ", "<think>"], False),  # the sign shares its token with letters
    ]
)
def test_opener_counts_as_for_the_parser(pieces: list[str], counts: bool) -> None:
    texts = [piece.encode().decode("latin-1") for piece in PIECES]
    signs = [sign.encode().decode("latin-1") for sign in SIGNS_BEFORE_TAGS]
    tokens = marker_tokens(["<think>", "</think>"], texts, {"<think>": 0}, signs)
    spelling = ThoughtSpelling(
        token_texts={text: pack_ids(ids) for text, ids in tokens.items()},
        openers=["<think>"],
        closers=["</think>"],
        edges=["</think>"],
        end=b"",
        answer=b"",
    )
    counter = ThoughtCounter(ThoughtBudget.of(spelling, 100, in_reasoning=False))
    for piece in pieces:
        counter.count(PIECES.index(piece))
    assert counter.thinks is counts

    events = open_parser("hermes").feed("".join(pieces) + "x")
    if "etc." not in pieces:
        assert (
            "reasoning" in [event.kind for event in events if isinstance(event, BlockStart)]
        ) is counts
