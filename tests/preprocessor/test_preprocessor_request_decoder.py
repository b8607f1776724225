"""Requests that go on from each other are decoded as by an ordinary decoder."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.conversation import Call, Conversation, Part, Reasoning, Result, Sampling, Text, ToolSpec, Turn
from schemas.frames import CountRequest, TurnRequest
from services.preprocessor.request_decoder import STEP, RequestDecoder
from services.runtime.branch_cache import BRANCHES
from tests.conftest import examples

encode = msgspec.json.encode


def turn(number: int, text: str = "some words that make it long enough to be a key of its own") -> Turn:
    parts: list[Part] = [Text(f'{text} {number} "quoted" \\ é 漢 \U0001f642 \x00')]
    if number % 2:
        parts = [Reasoning("hm", seal="x"), *parts, Call(f"c{number}", "run", '{"a": "[{\\"turns\\":[1]}]"}')]
    elif number:
        return Turn("tool", [Result(f"c{number - 1}", [Text("]}, {")], is_error=bool(number % 3))])
    return Turn("assistant" if number % 2 else "user", parts, name="n" if number % 5 == 0 else None)


def request(turns: list[Turn], number: int = 0, **more: object) -> TurnRequest:
    conversation = Conversation("demo", turns, system=[Text("Be brief.")], tools=[ToolSpec("run")], **more)  # type: ignore[arg-type]
    return TurnRequest(f"turn{number}", "frontend", conversation, attempt=1 + number % 2)


def test_a_session_that_grows() -> None:
    decoder = RequestDecoder(1 << 20)
    turns = [turn(0)]
    former: list[Turn] = []
    shared = 0
    for number in range(1, 120):
        turns.append(turn(number))
        sent = request(turns, number)
        got = decoder.decode(encode(sent), TurnRequest)
        assert got == sent
        shared = sum(one is other for one, other in zip(got.conversation.turns, former, strict=False))
        former = got.conversation.turns
    assert shared > 119 - 2 * STEP  # the very objects: they compare in no time


def test_turns_are_the_same_objects_from_their_second_request_on() -> None:
    """Whatever keeps turns compares them in no time, also those that came last."""
    decoder = RequestDecoder(1 << 20)
    turns = [turn(number) for number in range(2 * STEP)]
    former = decoder.decode(encode(request(turns)), TurnRequest).conversation.turns
    for number in range(2 * STEP, 5 * STEP):
        turns.append(turn(number))
        sent = request(turns, number)
        got = decoder.decode(encode(sent), TurnRequest)
        assert got == sent
        assert all(one is other for one, other in zip(got.conversation.turns, former, strict=False))
        former = got.conversation.turns
    shorter = request([*turns[:-3], turn(1000)])
    assert decoder.decode(encode(shorter), TurnRequest) == shorter


def test_what_is_counted_goes_on_from_what_was_asked() -> None:
    decoder = RequestDecoder(1 << 20)
    turns = [turn(number) for number in range(40)]
    first = decoder.decode(encode(request(turns)), TurnRequest)
    counted = decoder.decode(encode(CountRequest(request([*turns, turn(40)]).conversation)), CountRequest)
    assert counted.conversation.turns == [*turns, turn(40)]
    assert counted.conversation.turns[5] is first.conversation.turns[5]


def test_a_changed_history_is_decoded_as_it_is() -> None:
    decoder = RequestDecoder(1 << 20)
    turns = [turn(number) for number in range(40)]
    decoder.decode(encode(request(turns)), TurnRequest)
    for at in (0, 1, 20, 38, 39):
        changed = [*turns[:at], turn(at, "another text, and quite another, that is long enough, too"), *turns[at + 1 :]]
        assert decoder.decode(encode(request(changed)), TurnRequest) == request(changed)
        assert decoder.decode(encode(request(turns[: at + 1])), TurnRequest) == request(turns[: at + 1])


def test_json_that_is_written_in_another_way() -> None:
    decoder = RequestDecoder(1 << 20)
    sent = request([turn(number) for number in range(40)])
    spaced = msgspec.json.format(encode(sent), indent=1)
    for data in (spaced, encode(sent), spaced, encode(sent)):
        assert decoder.decode(data, TurnRequest) == sent
    reordered = encode({"conversation": msgspec.to_builtins(sent.conversation), "frontend": "f", "turn": "t", "x": 1})
    assert decoder.decode(reordered, TurnRequest).conversation == sent.conversation


def test_turns_that_are_not_the_conversations() -> None:
    decoder = RequestDecoder(1 << 20)
    turns = [turn(number) for number in range(40)]
    decoder.decode(encode(request(turns)), TurnRequest)
    listed = encode([*turns, turn(40)])
    for other in (b'{"turns":' + listed + b"}", b'{"conversation":{"template_kwargs":{"turns":' + listed + b"}}}"):
        data = b'{"turn":"t","frontend":"f","other":' + other + b',"conversation":{"model":"m","turns":[]}}'
        assert decoder.decode(data, TurnRequest) == TurnRequest("t", "f", Conversation("m", []))
    with pytest.raises(msgspec.DecodeError):
        decoder.decode(encode(request(turns[:-1])).replace(b'],"system"', b',],"system"'), TurnRequest)


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"turns":[', b'{"turn":"a","frontend":"b","conversation":{"turns":[3]}}']
)
def test_garbage_is_refused_as_ever(data: bytes) -> None:
    decoder = RequestDecoder(1 << 20)
    with pytest.raises(msgspec.DecodeError):
        decoder.decode(data, TurnRequest)
    turns = [turn(number) for number in range(40)]
    whole = encode(request(turns))
    decoder.decode(whole, TurnRequest)
    for end in range(len(whole) - 400, len(whole), 7):
        with pytest.raises(msgspec.DecodeError):
            decoder.decode(whole[:end], TurnRequest)


def test_memory_is_bounded() -> None:
    decoder = RequestDecoder(40_000)
    for number in range(60):
        turns = [turn(at, f"session {number} " + "x" * 300) for at in range(40)]
        assert decoder.decode(encode(request(turns)), TurnRequest).conversation.turns == turns
        assert decoder.size <= 40_000
    for number in range(3 * BRANCHES):  # they part behind the key
        turns = [turn(0, "y" * 300), *(turn(at, str(number)) for at in range(1, 20))]
        assert decoder.decode(encode(request(turns)), TurnRequest).conversation.turns == turns
        assert decoder.size <= 40_000


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.text(max_size=5)), min_size=1, max_size=12),
    st.integers(0, 20_000),
)
def test_sessions_in_any_order(steps: list[tuple[int, int, str]], room: int) -> None:
    decoder = RequestDecoder(room)
    sessions: dict[int, list[Turn]] = {}
    for which, more, text in steps:
        turns = sessions.setdefault(which, [turn(0)])
        sessions[which] = turns = [*turns, *(turn(len(turns) + at, text) for at in range(more))]
        sent = request(turns, which, sampling=Sampling(max_tokens=which))
        assert decoder.decode(encode(sent), TurnRequest) == sent


@pytest.mark.parametrize("nested", [b'"x":[%b],', b'"x":{"a":%b},', b'"name":"%b",'])
def test_a_last_turn_that_only_ends_like_one(nested: bytes) -> None:
    """What is kept ends before the last turn, whatever that holds."""
    decoder = RequestDecoder(1 << 20)
    turns = [turn(number) for number in range(40)]
    last = encode(turns[-1])
    inside = nested % (encode(last.decode())[1:-1] if b"name" in nested else last)
    odd = encode(request(turns)).replace(last + b'],"system"', b"{" + inside + last[1:] + b'],"system"')
    grown = encode(request([*turns, turn(40)]))
    for data in (odd, grown, odd, odd.replace(b'],"system"', b"," + encode(turn(40)) + b'],"system"')):
        assert decoder.decode(data, TurnRequest) == msgspec.json.decode(data, type=TurnRequest)


def big(turns: list[Turn], system: str, tools: int, **more: object) -> TurnRequest:
    schema = {"type": "object", "properties": {"tools": {"enum": ["]", '],"tools":[', '],"tool_choice":']}}}
    conversation = Conversation(
        "demo",
        turns,
        system=[Text(system)] if system else [],
        tools=[ToolSpec(f"tool{number}", "says " * 50, schema) for number in range(tools)],
        **more,  # type: ignore[arg-type]
    )
    return TurnRequest("turn", "frontend", conversation)


@pytest.mark.parametrize("system", ["", 'Be brief. ],"tools":[{"name":"x"}],"tool_choice":{} ' * 200])
@pytest.mark.parametrize("tools", [0, 1, 30])
def test_instructions_and_tools_that_come_again_are_the_same_objects(system: str, tools: int) -> None:
    decoder = RequestDecoder(1 << 20)
    asked = [big([turn(0, f"question {number} " + "x" * 5000)], system, tools) for number in range(3)]
    found = [decoder.decode(encode(one), TurnRequest) for one in asked]
    assert found == asked
    assert decoder.fresh < len(encode(asked[2])) - len(encode(asked[2].conversation.tools)) // 2 + 100
    for known, again in pairwise(found):
        if tools == 30:
            assert again.conversation.tools is known.conversation.tools
        if system:
            assert again.conversation.system is known.conversation.system
    counted = decoder.decode(encode(CountRequest(asked[0].conversation)), CountRequest)
    assert counted.conversation == asked[0].conversation


def test_lists_that_only_look_alike() -> None:
    decoder = RequestDecoder(1 << 20)
    first = big([turn(0)], "x" * 6000, 30)
    longer = big([turn(0)], "x" * 6000 + "y", 31)
    other = big([turn(0)], "x" * 5999 + "z", 29)
    shaped = big([turn(0)], "x" * 6000, 30, template_kwargs={"a": [1], "system": [{"text": "no"}], "tools": [2]})
    for sent in (first, longer, other, first, shaped, first):
        assert decoder.decode(encode(sent), TurnRequest) == sent
    bare = TurnRequest("turn", "frontend", Conversation("demo", [turn(0, "w" * 5000)], template_kwargs={"tools": [2]}))
    assert decoder.decode(encode(bare), TurnRequest) == bare
    empty = big([], "x" * 6000, 0, template_kwargs={"a": [1], "tools": []})
    assert decoder.decode(encode(empty), TurnRequest) == empty


def test_garbage_behind_known_lists_is_refused_as_ever() -> None:
    decoder = RequestDecoder(1 << 20)
    whole = encode(big([turn(0), turn(1)], "x" * 6000, 30))
    decoder.decode(whole, TurnRequest)
    spoiled = [whole[:end] for end in range(len(whole) - 60, len(whole))]
    spoiled += [whole.replace(b'],"tools":[', end, 1) for end in (b',],"tools":[', b'],"tools":[,', b'}],"tools":[')]
    spoiled += [
        whole.replace(b'],"system":[', b']],"system":[', 1),
        whole.replace(b'"tool_choice":{', b'"tool_choice":['),
    ]
    for data in spoiled:
        with pytest.raises(msgspec.DecodeError):
            decoder.decode(data, TurnRequest)
    twice = whole.replace(b',"tool_choice":', b',"tools":[],"tool_choice":', 1)
    assert decoder.decode(twice, TurnRequest) == msgspec.json.decode(twice, type=TurnRequest)
