"""Text about calls: what a family's parser reads as text can be written, and no text that can be
written is read as a broken call."""

import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import llguidance
import pytest

from schemas.conversation import ToolSpec
from services.families import Family, families, find_family
from services.families.grammar.markup import Markup
from services.guides.turn_grammar import TurnForm, turn_grammar
from services.guides.writer import Unguidable
from tests.guides.random_model import ByteTokenizer, calls_of
from tests.kit.every import for_each

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [ToolSpec("weather", schema=CITY), ToolSpec("list", schema={"type": "object"})]
MENTIONS = ("Write `{}`, please.", 'The "{}" opens it.', "It is ({}).", "- `{}`: opens it\n")
QUOTED = ("`{}`", '"{}"', "{}", " {} ", "({})", "\n{}\n", "`{}", "'{}' ")
WORDS = ("the ", "tag", " ", "\n", "`", '"', "(", ")", ". ", "is ", "x", "```\n", "{", "[", "'")
UNMENTIONED = {"hy_v3", "hy_v4", "kimi_k2", "minicpm5", "minimax_m3", "rwkv"}
"""Their calls may have quotes, or anything, after the marker."""


class Guided:
    """A family's grammar of turns, and its parser."""

    def __init__(self, name: str, *, special: bool, in_reasoning: bool = False) -> None:
        self.family = find_family(name)
        assert isinstance(self.family.grammar, Markup)
        added = [*dict.fromkeys((*self.family.markers, *self.family.stops))] if special else []
        self._tokenizer = ByteTokenizer(added)
        form = TurnForm(tools=TOOLS, in_reasoning=in_reasoning)
        grammar, _ = turn_grammar(form, self.family, self._tokenizer.tokens)
        lark: Any = llguidance.LLMatcher.grammar_from_lark(grammar)
        self._matcher = llguidance.LLMatcher(self._tokenizer.library, lark)

    def admits(self, text: str) -> bool:
        self._matcher.reset()
        ids = self._tokenizer.encode(text)
        whole = self._matcher.try_consume_tokens(ids) == len(ids)
        assert not self._matcher.is_error(), self._matcher.get_error()
        return bool(whole and self._matcher.is_accepting())


def guidable() -> Iterator[str]:
    for name in families():
        try:
            turn_grammar(TurnForm(tools=TOOLS), find_family(name))
        except Unguidable:
            continue
        if isinstance(find_family(name).grammar, Markup):
            yield name


def markers(family: Family) -> list[str]:
    grammar = family.grammar
    assert isinstance(grammar, Markup)
    heads = [call.shape.head for call in grammar.calls]
    return [*heads, *grammar.tails, *chain.from_iterable(grammar.think)]


def random_text(rng: random.Random, family: Family) -> str:
    call = family.style.write_call("weather", {"city": "x"})
    pieces: list[str] = []
    for _ in range(rng.randint(1, 9)):
        draw = rng.random()
        if draw < 0.25:
            pieces.append(rng.choice(QUOTED).format(rng.choice(markers(family))))
        elif draw < 0.35:
            pieces.append(rng.choice([call, family.style.call.partition("{name}")[0]]))
        else:
            pieces.append(rng.choice(WORDS))
    return "".join(pieces)


def check_random_texts(name: str, count: int, seed: int) -> None:
    for special, in_reasoning in ((True, False), (False, True)):
        guided = Guided(name, special=special, in_reasoning=in_reasoning)
        rng = random.Random(seed)
        texts = [random_text(rng, guided.family) for _ in range(count)]
        for text in filter(guided.admits, texts):
            calls, _ = calls_of(guided.family, TOOLS, text, ended=True, in_reasoning=in_reasoning)
            assert all(complete for _, _, complete in calls), (text, calls)


@for_each(["hermes", "qwen3_coder", "gemma4"])
def test_text_may_mention_the_marker_of_a_call(name: str) -> None:
    check_mentions(name)


@pytest.mark.slow
@for_each(sorted({*guidable()} - UNMENTIONED))
def test_text_of_any_family_may_mention_the_marker_of_a_call(name: str) -> None:
    check_mentions(name)


def check_mentions(name: str) -> None:
    for special in (True, False):
        guided = Guided(name, special=special)
        opening = guided.family.style.call.partition("{name}")[0]
        heads = [head for head in markers(guided.family) if head and opening.startswith(head)]
        for mention in MENTIONS:
            text = mention.format(max(heads, key=len))
            calls, prose = calls_of(guided.family, TOOLS, text, ended=True)
            assert not calls
            assert prose == text.strip()
            assert guided.admits(text), text


@for_each(["hermes", "qwen3_coder", "deepseek_v31"])
def test_text_and_reasoning_may_mention_the_marker_of_reasoning(name: str) -> None:
    for special in (True, False):
        for in_reasoning in (True, False):
            guided = Guided(name, special=special, in_reasoning=in_reasoning)
            end = "</think>" if in_reasoning else ""
            assert guided.admits(f"A `<think>` opens it.{end}Done.")
            assert guided.admits(f"Hm.{end}The tag `</think>` closes it.")


@for_each(["hermes", "qwen3_coder", "glm45", "deepseek_v31"])
def test_no_admitted_text_is_a_broken_call(name: str) -> None:
    check_random_texts(name, 100, 1)


@pytest.mark.slow
@for_each(list(guidable()))
def test_no_admitted_text_of_any_family_is_a_broken_call(name: str) -> None:
    check_random_texts(name, 400, 2)
