"""A call without arguments is a call, however the model writes that it has none."""

import pytest

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import Family, families
from tests.families.test_families_catalog import CALLING, PING, ids, read, text

TOOLS = [
    ToolSpec("ping"),
    ToolSpec("run", schema={"properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}),
]
TURN_ENDS = {
    "mistral": "[TOOL_CALLS]{name}[ARGS]",
    "gpt_oss": "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
    "beam": " to={name}<|channel|>analysis <|constrain|>xml<|message|>",
    "inkling": "{name}<|content_invoke_tool_json|>",
}
"""Calls that may end with the turn: nothing, or a token that engines do not return, closes them."""


def bodies(family: Family) -> list[str]:
    """Ways to write no arguments, where the format has a place for them; JSON needs a value after
    its colon."""
    front = family.style.call.partition("{arguments}")[0]
    as_json = family.style.arguments({}) == "{}"
    nothing = [] if front.rstrip().endswith(":") else ["", " ", "\n", "\n\n"]
    gemma = family.name in ("gemma4", "functiongemma")
    return (
        nothing + (["{}", "{ }"] if as_json else []) + (["null"] if as_json and not gemma else [])
    )


@pytest.mark.parametrize("family", CALLING, ids=ids)
def test_call_without_arguments_completes(family: Family) -> None:
    """Also that of a tool that requires some: the client knows what its tool does then."""
    for name in ("ping", "run"):
        front, _, back = family.style.call.replace("{name}", name).partition("{arguments}")
        for body in bodies(family):
            raw = front + body + back
            assert read(family, raw, tools=TOOLS) == [(name, {})], raw
            again = raw + (family.style.joint or "\n") + family.style.write_call(*PING)
            assert read(family, again, tools=TOOLS) == [(name, {}), PING], again


@pytest.mark.parametrize("name", TURN_ENDS)
def test_call_without_arguments_may_end_the_turn(name: str) -> None:
    family = families()[name]
    raw = TURN_ENDS[name].replace("{name}", "ping")
    for blank in ("", " ", "\n"):
        assert read(family, raw + blank) == [PING]
        assert read(family, raw + blank, FinishReason.LENGTH) in ([], [("ping", None)])


def test_empty_call_ends_at_the_next_marker_or_a_stop_token() -> None:
    mistral = families()["mistral"]
    raw = TURN_ENDS["mistral"].replace("{name}", "ping")
    for end in ("</s>", "\n</s>", "[/TOOL_CALLS]", "[/TOOL_CALLS]</s>"):
        assert read(mistral, raw + end) == [PING]
        assert read(mistral, "So." + raw + end) == [text("So."), PING]
    assert read(mistral, raw + mistral.style.write_call("run", {"cmd": "ls"})) == [
        PING,
        ("run", {"cmd": "ls"}),
    ]
    assert read(mistral, f"[TOOL_CALLS]ping[CALL_ID]a1b2c3d4e[ARGS]{raw}") == [PING, PING]
