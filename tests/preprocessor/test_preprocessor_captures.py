"""Prompts of captured requests of real agent clients."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench.ledger.published import of_trl
from schemas.conversation import Conversation
from services.frontend.apis.messages.request import parse
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt, assemble
from services.preprocessor.strip import strip_preamble
from services.templates.chat_template import ChatTemplate
from services.templates.messages import adapt
from services.templates.probe import probe
from services.templates.thinking import template_variables
from services.templates.tools import list_tools
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


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    return sum(
        1
        for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )


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


def test_header_of_an_older_client_is_stripped(setup: ModelSetup) -> None:
    found = [
        requests(folder)
        for folder in sorted((CAPTURES / "claude-code-2.1.100").iterdir())
        if folder.is_dir()
    ]
    assert any(found)
    for conversation in (conversation for scenario in found for conversation in scenario):
        assert strip_preamble(conversation) is not conversation


@pytest.mark.parametrize("name", ["16-long-prefix-session", "17-long-prefix-custom-session"])
def test_two_sessions_share_their_prompt_up_to_the_question(name: str, setup: ModelSetup) -> None:
    """Captured pair: same user, same folder, other first prompt. With the header they differ after
    a line."""
    one, other = (prompts(f"{name}-{session}", setup)[0] for session in "ab")
    shared = one.text[: shared_length(one.text, other.text)]
    assert len(shared) > 150_000
    assert shared.rstrip().endswith("</system-reminder>")
    assert one.text.index("<|im_end|>", len(shared)) - len(shared) < 50
    assert shared_length(one.ids, other.ids) > len(setup.tokenizer.encode(shared)) - 5


@pytest.mark.parametrize(
    "scenario",
    [
        "01-loop-default-model",
        "04-parallel-tools",
        "05-interleaved-thinking",
        "06-toolsearch",
        "16-long-prefix-session-a",
    ],
)
def test_each_turn_of_a_loop_extends_the_last(scenario: str, setup: ModelSetup) -> None:
    """Cache marks move, strings become blocks, ToolSearch inserts tools in the middle of the list:
    none of it shows."""
    found = prompts(scenario, setup)
    assert len(found) > 1
    for before, after in itertools.pairwise(found):
        assert after.text.startswith(before.text.removesuffix("<think>\n"))


def test_interleaved_thinking_keeps_its_order(setup: ModelSetup) -> None:
    text = prompts("05-interleaved-thinking", setup)[-1].text
    answer = text[text.rindex("<think>\nFirst create a.") :]
    marks = [
        "First create a.",
        "echo A > a.txt",
        "Then create b.",
        "Now the second file.",
        "echo B > b.txt",
    ]
    places = [
        answer.index(mark)
        for mark in [*marks, "Finally check a.", "<function=Read>", "<tool_response>"]
    ]
    assert places == sorted(places)


def test_searched_tool_is_defined_where_it_was_found(setup: ModelSetup) -> None:
    first, *_, last = requests(CLAUDE / "06-toolsearch")
    loaded = {tool.name for tool in last.tools if tool.deferred} - {
        tool.name for tool in first.tools
    }
    assert loaded
    text = assemble(last, setup).text
    front = text[: text.index("<|im_start|>user")]
    for name in loaded:
        assert f'"name": "{name}"' not in front
        assert f'"name": "{name}"' in text


def test_every_capture_renders_with_every_published_template(
    compiled_template: Callable[[str], ChatTemplate], cases: Cases
) -> None:
    conversations = [
        strip_preamble(conversation)
        for scenario in SCENARIOS
        for conversation in requests(CLAUDE / scenario)
    ]
    assert conversations
    for name in of_trl():
        template = compiled_template(name)
        traits = probe(template)
        with cases.case(template=name):
            for conversation in conversations:
                adapted = adapt(conversation, traits, template)
                variables = template_variables(conversation, traits, defaults={}, client={})
                tools = list_tools(conversation.tools)
                assert template.render(adapted.messages, tools=tools, variables=variables)
