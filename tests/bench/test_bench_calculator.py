"""The calculator prompt, five times."""

import asyncio
from collections.abc import Callable

import pytest

from bench import calculator
from schemas.events import FinishReason
from tests.kit.events import Step, call, finish, reasoning, text
from tests.kit.frontend import MODEL, FakeGateway, serving
from turnwire_tools.clients.answer import APIS

ARGUMENTS = '{"expression": "15 * 23"}'


def good() -> list[Step]:
    calling = call(1, "calculator", ARGUMENTS, call_id="toolu_1")
    return [[*reasoning(0, "15 * 20 + 15 * 3", pieces=4)], [*calling, finish(2)]]


def with_space() -> list[Step]:
    calling = call(2, "calculator", ARGUMENTS, call_id="toolu_1")
    return [[*reasoning(0, "345?"), *text(1, "I verify it.")], [*calling, finish(3)]]


def call_first() -> list[Step]:
    calling = call(0, "calculator", ARGUMENTS, call_id="toolu_1")
    return [[*calling, *reasoning(1, "Then I thought."), finish(2)]]


def markup_in_thought() -> list[Step]:
    calling = call(1, "calculator", ARGUMENTS, call_id="toolu_1")
    return [[*reasoning(0, "345?\n</think>\n<tool_call>"), *calling, finish(2)]]


def other_product() -> list[Step]:
    return [
        [
            *reasoning(0, "345?"),
            *call(1, "calculator", '{"expression": "15"}', call_id="t"),
            finish(2),
        ]
    ]


def no_call() -> list[Step]:
    return [[*reasoning(0, "345?"), *text(1, "It is 345."), finish(2)]]


def cut() -> list[Step]:
    calling = call(1, "calculator", '{"expr', call_id="toolu_1", complete=False)
    return [[*reasoning(0, "345?"), *calling, finish(2, FinishReason.LENGTH)]]


async def run(steps: Callable[[], list[Step]], api: str) -> tuple[int, FakeGateway]:
    async with serving(FakeGateway(steps)) as served:
        arguments = [f"--url={served.url}", f"--model={MODEL}", f"--api={api}"]
        return await asyncio.to_thread(calculator.main, arguments), served.gateway


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("steps", [good, with_space])
async def test_five_good_answers_pass(
    steps: Callable[[], list[Step]], api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, gateway = await run(steps, api)
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert shown.count("as expected") == calculator.REPEATS
    asked = [turn.conversation for turn in gateway.turns]
    assert [turn.messages for turn in asked] == [asked[0].messages] * calculator.REPEATS
    assert [tool.name for tool in asked[0].tools] == ["calculator", "weather"]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("steps", [call_first, markup_in_thought, other_product, no_call, cut])
async def test_answer_that_is_not_the_expected_one_fails(
    steps: Callable[[], list[Step]], api: str
) -> None:
    status, _ = await run(steps, api)
    assert status == 1


async def test_refusal_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGateway(good)) as served:
        assert (
            await asyncio.to_thread(calculator.main, [f"--url={served.url}", "--model=nobody"]) == 1
        )
    assert "404" in capsys.readouterr().out


@pytest.mark.slow
def test_own_stack_answers_five_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert calculator.main([]) == 0
    shown = capsys.readouterr().out
    assert "content_block_start thinking" in shown
    assert shown.count("as expected") == calculator.REPEATS
