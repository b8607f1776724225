"""`nvext.agent_hints.speculative_prefill`: the known prefix of the next turn is computed before its
request."""

import re
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.messages_client import Answer, Client, body, say
from tests.kit.nats import NatsServer, free_port
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S, eventually

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

pytestmark = pytest.mark.slow  # a stack of its own


class Forgetful:
    """A stack with a template that changes earlier turns."""

    def __init__(self, stack: Stack, metrics: str) -> None:
        self.stack = stack
        self._metrics = metrics

    def count(self, outcome: str) -> int:
        with urllib.request.urlopen(self._metrics, timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        found = re.search(
            rf'turnwire_speculative_prefills_total{{.*outcome="{outcome}".*}} ([0-9.]+)', text
        )
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
async def client(forgetful: Forgetful) -> AsyncIterator[Client]:
    connected = Client(forgetful.stack.url)
    yield connected
    await connected.http.close()


def request(*messages: object, **more: object) -> dict[str, object]:
    made = body("", tools=[], **more)
    made["messages"] = list(messages)
    return made


def missed(answer: Answer) -> int:
    """Prompt tokens that were computed."""
    return int(answer.usage["input_tokens"])


async def two_turns(
    client: Client, name: str, between: Callable[[], bool] | None, **hint: object
) -> Answer:
    thought = " ".join(f"{name} considers {i}" for i in range(200))
    text = " ".join(f"{name} says {i}" for i in range(200))
    first = {"role": "user", "content": say(f"{thought}\n</think>\n\n{text}", "\n</think>\n\nbye")}
    answer = await client.stream(request(first, **hint))
    if between is not None:
        await eventually(between)
    return await client.stream(
        request(first, answer.message, {"role": "user", "content": "and now?"}, **hint)
    )


async def test_a_prefill_hides_the_cost_of_a_template_that_changes_history(
    forgetful: Forgetful, client: Client
) -> None:
    plain = await two_turns(client, "plain", None)
    assert missed(plain) > 600, "without the hint the whole answer is prefilled again"
    before = forgetful.count("done")
    prefilled = await two_turns(
        client, "prefilled", lambda: forgetful.count("done") > before, **HINT
    )
    assert missed(prefilled) < 2 * BLOCK
