"""What TensorRT-LLM and vLLM take alike: guided decoding, and log probabilities."""

from schemas.conversation import OutputFormat
from services.worker.engines.support import chosen_first, guided_arguments
from tests.kit.engines import request


def test_a_form_becomes_one_argument() -> None:
    schema = {"type": "object"}
    assert guided_arguments(request(guided=OutputFormat("json_schema", schema))) == {"json": schema}
    assert guided_arguments(request(guided=OutputFormat("json_object"))) == {"json_object": True}
    assert guided_arguments(request()) is None


def test_a_grammar_is_of_whole_turns_only() -> None:
    assert guided_arguments(request(grammar='start: "x"')) == {"grammar": 'start: "x"'}
    assert guided_arguments(request(grammar='start: "x"', resumed=1)) is None, (
        "it would start again"
    )
    rest = request(grammar='start: "x"', rest_grammar='start: "y"', resumed=1)
    assert guided_arguments(rest) == {"grammar": 'start: "y"'}, "it begins where this request does"


def test_the_chosen_token_comes_first() -> None:
    values = {3: -2.0, 4: -0.5, 5: -1.0}
    assert chosen_first(5, values, 1) == [(5, -1.0), (4, -0.5)]
    assert chosen_first(5, values, None) == [(5, -1.0), (4, -0.5), (3, -2.0)]
    assert chosen_first(9, values, 0) == [(9, float("-inf"))]
