"""Tests that bodies which are not JSON, or not of the right shape, are refused by every API."""

import json

import pytest

from services.frontend.apis.shared.content import base64_size
from services.frontend.apis.shared.decode import mend_surrogates
from tests.kit.bodies import APIS, CHAT, COMPLETIONS, CONVERSING, MESSAGES, RESPONSES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'\xef\xbb\xbf{"messages": []}',
    ],
)
def test_body_other_than_json_is_refused(body: bytes) -> None:
    assert MESSAGES.refused(body).message.startswith("The request body is not valid JSON: ")
    for api in APIS:
        assert api.refused(body).message


def test_body_other_than_an_object_is_refused() -> None:
    for body in (b"[]", b'"text"', b"null"):
        for api in APIS:
            assert api.refused(body).message == "The request body must be a JSON object."


def test_deep_nesting_is_refused() -> None:
    for beginning, deep in ((b'{"unknown": ', b"["), (b'{"tools": [{"input_schema": ', b'{"a":')):
        body = beginning + deep * 100_000
        assert MESSAGES.refused(body).message == "The request body is nested too deeply."
        for api in (CHAT, RESPONSES):
            assert api.refused(body).message


@pytest.mark.parametrize(
    ("source", "mended"),
    [
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"cut \ud83d"', rb'"cut \ufffd"'),
        (rb'"\ude00 cut"', rb'"\ufffd cut"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\ude00\ude00"', rb'"\ufffd\ufffd"'),
        (rb'"C:\\ud83d"', rb'"C:\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
    ],
)
def test_lone_surrogate_is_mended(source: bytes, mended: bytes) -> None:
    assert mend_surrogates(source) == mended


def test_numbers_are_finite() -> None:
    for api in CONVERSING:
        for number in ("1e999", "NaN"):
            data = json.dumps(api.body(min_p="§")).replace('"\\u00a7"', number)
            assert api.refused(data.encode()).message


def test_wrong_lifetime_of_a_prefix_has_one_message_in_every_api_of_openai() -> None:
    for api in (COMPLETIONS, CHAT, RESPONSES):
        refused = api.refusal(prompt_cache_options={"ttl": "5m"})
        assert refused.message.endswith("Supported values are: '30m' and '12h'.")


def test_size_of_base64_is_computed_without_decoding() -> None:
    for data, size in (
        ("", 0),
        ("AAAA", 3),
        ("AA==", 1),
        ("A===", None),
        ("A=AA", None),
        ("ÄÄÄÄ", None),
    ):
        assert base64_size(data) == size
        assert base64_size(data.encode()) == size
