"""Requests are decoded as by an ordinary decoder; equal tools and long texts are one object."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.conversation import Client, Conversation, Reasoning, Result, Sampling, Text, ToolSpec, Turn
from schemas.frames import CountRequest, TurnRequest
from services.preprocessor.decode import RequestDecoder
from services.templates.tools import SessionTools
from tests.conftest import examples

encode = msgspec.json.encode
SCHEMA = {"type": "object", "properties": {"tools": {"enum": ["]", '],"tools":[']}}}


def request(text: str = "hi", system: str = "", tools: int = 0, **more: Any) -> TurnRequest:
    conversation = Conversation(
        "demo",
        [Turn("user", [Text(text)]), Turn("assistant", [Reasoning("so", seal="x")]), Turn("tool", [Result("c")])],
        system=[Text(system)] if system else [],
        tools=[ToolSpec(f"tool{number}", "says " * 50, SCHEMA) for number in range(tools)],
        **more,
    )
    return TurnRequest("turn", "frontend", conversation, attempt=2, timeout_s=1.5, avoid=["w"], trace={"a": "b"})


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.text(), st.integers(0, 4), st.sampled_from(["", "s" * 5000])), max_size=8))
def test_requests_are_those_of_an_ordinary_decoder(sent: list[tuple[str, int, str]]) -> None:
    decoder = RequestDecoder(1 << 20)
    for text, tools, system in sent:
        one = request(
            text,
            system,
            tools,
            client=Client("s", tenant="t"),
            sampling=Sampling(max_tokens=tools),
            template_kwargs={"tools": [2]},
            prefill=False,
        )
        assert decoder.turn(encode(one)) == one
        assert decoder.count(encode(CountRequest(one.conversation))) == CountRequest(one.conversation)


def test_tools_and_long_texts_that_come_again_are_the_same_objects() -> None:
    decoder = RequestDecoder(1 << 20)
    first, second = (decoder.turn(encode(request(text, "x" * 5000, 30))).conversation for text in ("one", "two"))
    assert isinstance(first.tools, SessionTools)
    assert second.tools is first.tools
    assert second.system[0] is first.system[0]
    assert decoder.turn(encode(request("one", "x" * 5000, 29))).conversation.tools == first.tools[:29]


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"turns":[', b'{"turn":"a","frontend":"b","conversation":{"turns":[3]}}']
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        RequestDecoder(1 << 20).turn(data)


@pytest.mark.parametrize("tools", [b"3", b"[3]", b'{"name":"a"}', b'[{"name":3}]'])
def test_tools_that_are_not_tools_are_refused(tools: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        RequestDecoder(1 << 20).turn(
            b'{"turn":"a","frontend":"b","conversation":{"model":"m","turns":[],"tools":%b}}' % tools
        )
