"""Response templates are read as transformers reads them: the same fields for the same output,
however it is split."""

import json

from services.families.response_template import template_name
from tests.kit.described_turns import WRITTEN, by_transformers, fields, make_turn, parsed, templates
from tests.kit.every import for_each
from tests.kit.examples import chances

NAMES = [name for name in WRITTEN if name in templates()]


@for_each(NAMES)
def test_fields_are_those_of_transformers(name: str) -> None:
    """Both readers find the fields that were written."""
    template = templates()[name]
    family_name = template_name(json.dumps(template))
    for chance in chances(name, 1500, quick=20):
        turn = make_turn(chance, WRITTEN[name])
        truth = (turn.thought, turn.text, turn.calls)
        assert by_transformers(template, turn) == truth, turn.output
        assert fields(parsed(family_name, turn)) == truth, turn.output
