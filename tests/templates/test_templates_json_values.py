"""JSON in templates is that of the standard library."""

import json
from typing import Any

from services.templates.jinja import environment
from services.templates.json_values import JsonDict
from tests.kit.every import for_each


@for_each(
    [
        {"a\udc3c": '\x00\x1f\x7f\u2028</\\"😀'},
        {"1e5": [1.5, -0.0, 2**64, -(2**63), True, None]},
        {"": JsonDict({"b": [JsonDict({})]}), "c": {}},
    ]
)
def test_json_of_an_object_is_that_of_the_standard_library(value: dict[str, Any]) -> None:
    expected = json.dumps(value, ensure_ascii=False)
    assert environment().from_string("{{ x | tojson }}").render(x=JsonDict(value)) == expected
