"""Bodies that are not JSON, too deep, too large, or with numbers that are not finite."""

import json

import pytest

from schemas.errors import Invalid
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.shared.decode import MAX_VALUES
from services.frontend.apis.shared.surrogates import mend_surrogates
from tests.kit.bodies import (
    APIS,
    CHAT,
    CONVERSING,
    MESSAGES,
    RESPONSES,
    USER,
    Api,
    Json,
    assistant,
    block,
)
from tests.kit.every import for_rows


def test_body_other_than_a_json_object_is_refused() -> None:
    for body, defect in (
        (b"{", "Input data was truncated (byte 1)"),
        (b'{"messages": [{"role": "us', "Input data was truncated (byte 26)"),
        (b'{"model" 1}', "JSON is malformed: expected ':' (byte 9)"),
        (b'{"system": "\xff"}', "'utf-8' codec can't decode byte 0xff in position 12"),
    ):
        for api in APIS:
            message = api.refused(body).message
            assert message.startswith(f"The request body is not valid JSON: {defect}"), api.name
    for body in (b"", b" \r\n"):
        for api in APIS:
            assert api.refused(body).message == "The request has no body.", api.name
    for api in APIS:
        assert api.refused(b"[]").message == "The request body must be a JSON object.", api.name


def test_deep_nesting_is_refused() -> None:
    for beginning, deep in ((b'{"unknown": ', b"["), (b'{"tools": [{"input_schema": ', b'{"a":')):
        body = beginning + deep * 100_000
        assert MESSAGES.refused(body).message == "The request body is nested too deeply."
        for api in (CHAT, RESPONSES):
            assert api.refused(body).message


@for_rows(
    [
        (MESSAGES, assistant(block("mcp_tool_result", content=["§"])), ""),
        (RESPONSES, block("mcp_call", output="§"), "input[1]"),
        (RESPONSES, block("web_search_call", action={"query": "§"}), "input[1]"),
        (RESPONSES, block("local_shell_call", call_id="c", action={"a": "§"}), "input[1].action"),
    ]
)
def test_number_beyond_floats_is_refused_in_members_of_any_form(
    api: Api, item: Json, place: str
) -> None:
    body = json.dumps(api.body(USER, item)).replace('"\\u00a7"', "1e999")
    refused = api.refused(body.encode())
    assert "out of range" in refused.message
    assert (refused.param or "").startswith(place)


def test_numbers_are_finite() -> None:
    for api in CONVERSING:
        for number in ("1e999", "NaN"):
            data = json.dumps(api.body(min_p="§")).replace('"\\u00a7"', number)
            assert api.refused(data.encode()).message, (api.name, number)


def test_more_values_than_any_model_takes_are_refused() -> None:
    body = b'{"model":"m","messages":[' + b",".join([b"1"] * (MAX_VALUES + 2)) + b"]}"
    with pytest.raises(Invalid, match="more than"):
        Chat().parse(body, {})


@pytest.mark.parametrize(
    ("source", "mended"),
    [
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"cut \ud83d"', rb'"cut \ufffd"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"C:\\ud83d"', rb'"C:\\ud83d"'),
    ],
)
def test_lone_surrogate_is_mended(source: bytes, mended: bytes) -> None:
    assert mend_surrogates(source) == mended
