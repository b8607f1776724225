"""`nvext.agent_hints.speculative_prefill`: the next turn's certain prefix is computed before it is asked for."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import NatsServer, eventually, free_port
from tests.pipeline.client import Answer, Client, body, say
from tests.pipeline.stack import Stack

FORGETFUL = """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}
"""
"""Drops the reasoning of every answer to which its user has replied, as Qwen3's does."""
HINT = {"nvext": {"agent_hints": {"speculative_prefill": True}}}
BLOCK = 32


class Forgetful:
    """A stack whose template changes what is history."""

    def __init__(self, stack: Stack, metrics: str) -> None:
        self.stack = stack
        self._metrics = metrics

    def count(self, outcome: str) -> int:
        with urllib.request.urlopen(self._metrics, timeout=5) as answer:
            text = answer.read().decode()
        found = re.search(rf'turnwire_speculative_prefills_total{{outcome="{outcome}"}} ([0-9.]+)', text)
        return int(float(found[1])) if found else 0


@pytest.fixture(scope="module")
def forgetful(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Forgetful]:
    directory = tmp_path_factory.mktemp("forgetful")
    template = directory / "template.jinja"
    template.write_text(FORGETFUL)
    port = free_port()
    stack = Stack(make_nats(), demo_model, directory)
    options = {"chat_template": template, "family": "hermes", "metrics_port": port}
    try:
        stack.start_all(preprocessor=options)
        yield Forgetful(stack, f"http://127.0.0.1:{port}/metrics")
    finally:
        stack.stop()


@pytest.fixture
async def talker(forgetful: Forgetful) -> AsyncIterator[Client]:
    client = Client(forgetful.stack.url)
    yield client
    await client.http.close()


def request(*messages: object, **more: object) -> dict[str, object]:
    made = body("", tools=[], **more)
    made["messages"] = list(messages)
    return made


def missed(answer: Answer) -> int:
    """Prompt tokens that had to be computed."""
    return int(answer.usage["input_tokens"])


async def two_turns(client: Client, name: str, between: Callable[[], bool] | None, **hint: object) -> Answer:
    thought = " ".join(f"{name} considers {i}" for i in range(200))
    told = " ".join(f"{name} says {i}" for i in range(200))
    first = {"role": "user", "content": say(f"{thought}\n</think>\n\n{told}", "\n</think>\n\nbye")}
    answer = await client.stream(request(first, **hint))
    if between is not None:
        await eventually(between)
    return await client.stream(request(first, answer.message, {"role": "user", "content": "and now?"}, **hint))


async def test_a_template_that_changes_history_costs_nothing_when_it_was_foreseen(
    forgetful: Forgetful, talker: Client
) -> None:
    plain = await two_turns(talker, "plain", None)
    assert missed(plain) > 600, "without the hint the whole answer is prefilled anew"
    before = forgetful.count("done")
    foreseen = await two_turns(talker, "foreseen", lambda: forgetful.count("done") > before, **HINT)
    assert missed(foreseen) < 2 * BLOCK


async def test_what_the_engine_has_just_decoded_is_not_computed_again(forgetful: Forgetful, talker: Client) -> None:
    before = forgetful.count("known")
    first = {"role": "user", "content": say("\n</think>\n\nshort")}
    await talker.stream(request(first, **HINT))
    await eventually(lambda: forgetful.count("known") > before)


async def test_a_busy_worker_has_better_things_to_do(forgetful: Forgetful, talker: Client) -> None:
    held = asyncio.create_task(talker.stream(request({"role": "user", "content": say("[[delay 50]][[fill 100]]")})))
    await eventually(lambda: forgetful.stack.health()["stages"]["worker"][0]["running"] > 0)
    before = forgetful.count("busy")
    await two_turns(talker, "late", lambda: forgetful.count("busy") > before, **HINT)
    assert (await held).stop_reason == "end_turn"
