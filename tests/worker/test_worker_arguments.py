"""Arguments that engines share: guided decoding, sampling, priorities."""

from typing import Any

from schemas.conversation import OutputFormat, Sampling
from services.worker.engines.arguments import guided_arguments, integer_priority, limited_sampling
from tests.kit.engines import request


def test_guided_decoding_is_one_argument_and_a_grammar_is_of_whole_turns() -> None:
    schema, grammar = {"type": "object"}, 'start: "x"'
    asked: dict[str, Any] = {"grammar": grammar, "resumed": 1}
    for made, arguments in (
        (request(), None),
        (request(guided=OutputFormat("json_schema", schema)), {"json": schema}),
        (request(guided=OutputFormat("json_object")), {"json_object": True}),
        (request(grammar=grammar), {"grammar": grammar}),
        (request(**asked), None),  # it would start again
        (request(**asked, rest_grammar='start: "y"'), {"grammar": 'start: "y"'}),
    ):
        assert guided_arguments(made) == arguments


def test_sampling_is_in_the_limits_of_libraries() -> None:
    prefill = request(max_tokens=0, min_tokens=3, seed=-1)
    sampling = limited_sampling(prefill, Sampling(top_k=7))
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (1, 1)
    assert sampling["seed"] == 2**63 - 1, "-1 would be no seed"
    assert sampling["top_k"] == 7, "the model's"
    assert integer_priority(request(priority=0.5)) == 500
