"""Deep schemas are refused, whichever tool has them and wherever they are deep."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import Conversation, OutputFormat, ToolSpec
from schemas.errors import Invalid
from services.frontend.turns.conversation_limits import ConversationLimits

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
SCHEMAS = st.dictionaries(st.text(max_size=2), VALUES, max_size=3)


def depth(value: Any) -> int:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inner), default=0)
    return 0


@given(st.lists(SCHEMAS, max_size=4), SCHEMAS, SCHEMAS, st.integers(1, 5))
def test_first_schema_over_the_limit_is_named(
    schemas: list[dict[str, Any]], output: dict[str, Any], kwargs: dict[str, Any], limit: int
) -> None:
    tools = [ToolSpec(f"t{at}", schema=schema) for at, schema in enumerate(schemas)]
    conversation = Conversation(
        "m", [], tools=tools, format=OutputFormat("json_schema", output), template_kwargs=kwargs
    )
    named = [(f"The schema of tool '{tool.name}'", tool.schema) for tool in tools]
    named += [("The schema of the output format", output), ("chat_template_kwargs", kwargs)]
    too_deep = [name for name, value in named if depth(value) > limit]
    limits = ConversationLimits(messages=9, tools=9, media=9, nesting=limit)
    if not too_deep:
        assert limits.check(conversation) == []
        return
    with pytest.raises(Invalid, match="nested too deeply") as refusal:
        limits.check(conversation)
    assert str(refusal.value).startswith(too_deep[0])
