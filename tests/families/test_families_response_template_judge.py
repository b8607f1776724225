"""Response templates are read as transformers reads them: the same fields for the same output,
however it is split."""

import json
import random
import re
from collections import Counter
from typing import Any

import pytest

from services.families.response_template import template_name
from tests.kit.described_turns import (
    WRITTEN,
    by_transformers,
    fields,
    make_turn,
    parsed,
    splits,
    templates,
)
from tests.kit.every import for_each

_ENDS = re.compile(r"(?:</(?:parameter|arg_value)>|\[/ARG\])\s*[<\[]").search
"""Finds a closer of a value with another delimiter after it: no parser can tell it from the end of
the value."""
_OPENS = re.compile(r"<parameter=|<arg_key>|\[ARG ").search
"""Finds the tag of an argument in a string; if that argument is missing, the string may have lost
its end."""
NAMES = [name for name in WRITTEN if name in templates()]


def judge(name: str, seeds: range, *, marked: bool = False) -> Counter[str]:
    """Compares both readers; returns how many turns had which result."""
    template, written = templates()[name], WRITTEN[name]
    family_name, counts = template_name(json.dumps(template)), Counter[str]()
    for seed in seeds:
        rng = random.Random(f"{name} {seed}")
        turn = make_turn(rng, written, marked=marked)
        if marked and any(_ENDS(json.dumps(arguments)) for _, arguments in turn.calls):
            continue  # the text of a value that spells the end of its call
        ours = None
        for pieces in splits(rng, turn.output):
            found = parsed(family_name, turn, pieces)
            assert ours is None or found == ours, (seed, turn.output, pieces)
            ours = found
        assert ours is not None
        truth = (turn.thought, turn.text, turn.calls)
        try:
            theirs: Any = by_transformers(template, turn)
        except (ValueError, KeyError) as error:
            theirs = error
        mine = fields(ours)
        if mine == truth == theirs:
            counts["equal"] += 1
        elif marked and mine == truth:
            counts["better"] += 1
        else:
            assert marked, (seed, turn.output, mine, theirs)
            assert theirs != truth or any(
                _OPENS(json.dumps(arguments)) for _, arguments in turn.calls
            )
            assert all(call in turn.calls for call in mine[2]), (seed, turn.output, mine)
            counts["safer"] += 1
    return counts


@for_each(NAMES)
def test_fields_are_those_of_transformers(name: str) -> None:
    assert judge(name, range(20))["equal"] == 20


@pytest.mark.slow
@for_each(NAMES)
def test_fields_are_those_of_transformers_in_many_turns(name: str) -> None:
    assert judge(name, range(20, 1500))["equal"] == 1480


@for_each([name for name in NAMES if WRITTEN[name].delimiters])
def test_call_with_delimiters_in_its_strings_is_right_or_incomplete(name: str) -> None:
    judge(name, range(80), marked=True)


@pytest.mark.slow
@for_each([name for name in NAMES if WRITTEN[name].delimiters])
def test_many_calls_with_delimiters_in_their_strings_are_right_or_incomplete(name: str) -> None:
    judge(name, range(80, 400), marked=True)
