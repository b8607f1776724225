"""What tools take of a prompt: an estimate of their tokens, and the heaviest of the last hour."""

import pytest

from schemas.control import ToolWeight
from schemas.conversation import Conversation, Message, Text, ToolSpec
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_tools import PromptToolCache
from services.preprocessor.prompt.tool_weights import KEPT_S, HeaviestTools

WORDS = [
    "reads",
    "writes",
    "opens",
    "closes",
    "renames",
    "copies",
    "the",
    "a",
    "of",
    "file",
    "folder",
    "mail",
    "page",
    "row",
]


def tool(number: int) -> ToolSpec:
    about = " ".join(WORDS[(number * step) % len(WORDS)] for step in range(3, 20 + number % 30))
    target = {"type": "string", "description": about[: 20 + number % 50]}
    schema = {"type": "object", "properties": {"target": target, "force": {"type": "boolean"}}}
    return ToolSpec(f"tool_{number}", about, schema)


def prompt_tokens(setup: ModelSetup, tools: list[ToolSpec]) -> int:
    conversation = Conversation("m", [Message("user", [Text("Hi.")])], tools=tools)
    return len(assemble(conversation, setup).ids)


def test_estimate_is_near_what_the_tools_add_to_the_prompt(setup: ModelSetup) -> None:
    for number in (40, 250):
        tools = [tool(index) for index in range(number)]
        added = prompt_tokens(setup, tools) - prompt_tokens(setup, [])
        assert PromptToolCache(setup).get(tools).tokens == pytest.approx(added, rel=0.07), number


def test_deferred_tools_do_not_count(setup: ModelSetup) -> None:
    listed = [ToolSpec("look", "Looks.")]
    deferred = [ToolSpec("find", "Finds.", deferred=True)]
    assert (
        PromptToolCache(setup).get(listed + deferred).tokens
        == PromptToolCache(setup).get(listed).tokens
    )
    assert PromptToolCache(setup).get(deferred).tokens == PromptToolCache(setup).get([]).tokens == 0


def test_heaviest_tools_of_the_last_hour_are_kept() -> None:
    heaviest = HeaviestTools()
    assert heaviest.at(5.0) is None
    light, heavy = ToolWeight(10, 100, "a"), ToolWeight(70, 100, "b")
    for weight in (light, heavy, light):
        heaviest.note(weight, 5.0)
    assert heaviest.at(5.0) == heavy
    heaviest.note(light, 5.0 + KEPT_S)
    assert heaviest.at(6.0 + KEPT_S) == light
