"""Tests the fields of a Responses request that other APIs do not have."""

import json
from typing import Any

import msgspec
import pytest

from schemas.errors import Invalid
from services.frontend.apis.responses.parse.body import decode
from services.frontend.apis.responses.request import Responses
from tests.kit.bodies import Json, function_call, responses


def encoded(body: Json) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("stored", "own", "place"), [(3, "c", "history[1].call_id"), ("c", 3, "input[0].call_id")]
)
def test_error_names_the_place_in_history_or_input(stored: Any, own: Any, place: str) -> None:
    request = decode(encoded(responses(function_call(own))))
    history = [msgspec.Raw(encoded(function_call(id))) for id in ("b", stored)]
    with pytest.raises(Invalid) as refused:
        Responses().convert(request, {}, history)
    assert refused.value.info.param == place
