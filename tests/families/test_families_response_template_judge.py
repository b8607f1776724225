"""Response templates are read as transformers reads them: the same fields for the same output,
however it is split."""

import json
import random

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

NAMES = [name for name in WRITTEN if name in templates()]


def compare(name: str, seeds: range) -> None:
    """Both readers find the fields that were written."""
    template = templates()[name]
    family_name = template_name(json.dumps(template))
    for seed in seeds:
        rng = random.Random(f"{name} {seed}")
        turn = make_turn(rng, WRITTEN[name])
        truth = (turn.thought, turn.text, turn.calls)
        assert by_transformers(template, turn) == truth, (seed, turn.output)
        for pieces in splits(rng, turn.output):
            assert fields(parsed(family_name, turn, pieces)) == truth, (seed, turn.output, pieces)


@for_each(NAMES)
def test_fields_are_those_of_transformers(name: str) -> None:
    compare(name, range(20))


@pytest.mark.slow
@for_each(NAMES)
def test_fields_are_those_of_transformers_in_many_turns(name: str) -> None:
    compare(name, range(20, 1500))
