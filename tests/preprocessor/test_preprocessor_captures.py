"""Prompts of captured requests of real agent clients."""

import itertools
import json
from pathlib import Path

import pytest

from schemas.conversation import Conversation
from services.frontend.apis.messages.request import parse
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt, assemble
from services.preprocessor.strip import strip_preamble
from tests.kit.captures import CAPTURES, REASON
from tests.kit.every import Cases

CLAUDE = CAPTURES / "claude-code-2.1.328"

pytestmark = pytest.mark.skipif(not CLAUDE.is_dir(), reason=REASON)


def requests(scenario: Path) -> list[Conversation]:
    bodies = [
        json.loads(file.read_text()) for file in sorted(scenario.glob("*-POST-v1-messages.json"))
    ]
    return [
        parse(json.dumps(each["body"]).encode(), dict(each["headers"])).conversation
        for each in bodies
    ]


def prompts(scenario: str, setup: ModelSetup) -> list[Prompt]:
    return [assemble(conversation, setup) for conversation in requests(CLAUDE / scenario)]


SCENARIOS = sorted(
    folder.name for folder in CLAUDE.glob("*") if any(folder.glob("*-POST-v1-messages.json"))
)


def test_prompts_of_claude_code_have_no_billing_header(setup: ModelSetup, cases: Cases) -> None:
    assert SCENARIOS
    for scenario in SCENARIOS:
        for number, conversation in enumerate(requests(CLAUDE / scenario)):
            with cases.case(scenario=scenario, request=number):
                prompt = assemble(conversation, setup)
                assert strip_preamble(conversation) is not conversation
                assert "x-anthropic-billing-header" not in prompt.text
                assert prompt.rendered.in_reasoning == (conversation.thinking.mode != "disabled")
                assert setup.tokenizer.decode(prompt.ids) == prompt.text


@pytest.mark.parametrize(
    "scenario", ["04-parallel-tools", "05-interleaved-thinking", "06-toolsearch"]
)
def test_each_turn_of_a_loop_extends_the_last(scenario: str, setup: ModelSetup) -> None:
    """Cache marks move, strings become blocks, ToolSearch inserts tools in the middle of the list:
    none of it shows."""
    found = prompts(scenario, setup)
    assert len(found) > 1
    for before, after in itertools.pairwise(found):
        assert after.text.startswith(before.text.removesuffix("<think>\n"))
