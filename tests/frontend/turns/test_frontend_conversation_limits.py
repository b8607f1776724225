"""Deep and large schemas are refused, whichever tool has them and wherever they are deep."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import Conversation, OutputFormat, ToolSpec
from schemas.errors import Invalid
from services.frontend.turns.conversation_limits import MAX_VALUES, ConversationLimits
from services.guides import promises
from tests.kit.bodies import CHAT, MESSAGES, RESPONSES, chat_tool, function, tool
from tests.kit.every import for_rows
from tests.kit.frontend import CARD, FakeGateway, serving

LIMITS = ConversationLimits(messages=9, tools=9, media=9, nesting=9)


def nested(depth: int) -> dict[str, Any]:
    """A schema with this number of levels."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": 1, "b": value}
    return value


@for_rows(
    [
        ((9, 9, 9, 9), None),
        ((0, 10, 11, 0), "The schema of tool 't1'"),
        ((0, 9, 10, 10), "The schema of the output format"),
        ((9, 0, 0, 10), "chat_template_kwargs"),
    ]
)
def test_first_schema_over_the_limit_is_named(
    depths: tuple[int, int, int, int], named: str | None
) -> None:
    first, second, output, kwargs = map(nested, depths)
    conversation = Conversation(
        "m",
        [],
        tools=[ToolSpec("t0", schema=first), ToolSpec("t1", schema=second)],
        format=OutputFormat("json_schema", output),
        template_kwargs=kwargs,
    )
    if named is None:
        assert LIMITS.check(conversation) == []
        return
    with pytest.raises(Invalid, match="nested too deeply; the maximum is 9 levels") as refusal:
        LIMITS.check(conversation)
    assert str(refusal.value).startswith(named)


@for_rows([*product(("tools", "format", "chat_template_kwargs"), (True, False))])
def test_schema_with_too_many_values_is_refused(place: str, wide: bool) -> None:
    def asked(values: int) -> Conversation:
        members: Any = {f"p{at}": {} for at in range(values)} if wide else [0] * values
        schema = {"properties": members, "type": "object"}
        return Conversation(
            "m",
            [],
            tools=[ToolSpec("small"), ToolSpec("f", schema=schema if place == "tools" else {})],
            format=OutputFormat("json_schema", schema if place == "format" else {}),
            template_kwargs=schema if place == "chat_template_kwargs" else {},
        )

    assert LIMITS.check(asked(MAX_VALUES - 2)) == []
    with pytest.raises(Invalid, match="too many values") as refusal:
        LIMITS.check(asked(MAX_VALUES - 1))
    assert refusal.value.info.param == place


PROPERTIES = {f"p{at}": {"type": "string"} for at in range(MAX_VALUES // 2)}
WIDE = {"type": "object", "properties": PROPERTIES}
FLAT = function("f", parameters=WIDE, strict=True)


async def test_large_schema_is_refused_before_its_grammar_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[object] = []
    monkeypatch.setattr(promises, "turn_grammar", lambda *form: written.append(form))
    card = replace(CARD, family="hermes", features=["guided", "grammar", "strict"])
    gateway = FakeGateway(cards=[card])
    async with serving(gateway) as served:
        for api, body in (
            (MESSAGES, MESSAGES.body(tools=[tool("f", input_schema=WIDE)])),
            (CHAT, CHAT.body(tools=[chat_tool("f", parameters=WIDE, strict=True)])),
            (RESPONSES, RESPONSES.body(tools=[FLAT])),
            (RESPONSES, RESPONSES.body(tools=[FLAT], background=True)),
        ):
            status, _, message = (await served.post(api.path, body)).error
            assert status == 400, api.name
            assert "too many values" in message
    assert not written
