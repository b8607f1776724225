"""`nvext.agent_hints.speculative_prefill`: the known prefix of the next turn is computed before its
request."""

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.messages_client import Client, body, say
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


async def two_turns(client: Client, name: str, prefilled: Callable[[], bool], **hint: Any) -> int:
    """The prompt tokens of the second turn that were computed."""
    thought = " ".join(f"{name} considers {i}" for i in range(200))
    text = " ".join(f"{name} says {i}" for i in range(200))
    outputs = say(f"{thought}\n</think>\n\n{text}", "\n</think>\n\nbye")
    first = body(outputs, tools=[], **hint)
    answer = await client.stream(first)
    await eventually(prefilled)
    messages = [*first["messages"], answer.message, {"role": "user", "content": "and now?"}]
    second = await client.stream({**first, "messages": messages})
    return int(second.usage["input_tokens"])


async def test_a_prefill_hides_the_cost_of_a_template_that_changes_history(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path: Path
) -> None:
    template, port = tmp_path / "template.jinja", free_port()
    template.write_text(FORGETFUL)

    def done() -> bool:
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        return bool(
            re.search(r'turnwire_speculative_prefills_total{.*outcome="done".*} [1-9]', text)
        )

    stack = Stack(make_nats(), demo_model, tmp_path)
    try:
        options = {"chat_template": template, "family": "hermes", "metrics_port": port}
        stack.start_all(preprocessor=options)
        client = Client(stack.url)
        missed = await two_turns(client, "plain", lambda: True)
        assert missed > 600, "without the hint the whole answer is prefilled again"
        assert not done()
        assert await two_turns(client, "prefilled", done, **HINT) < 2 * BLOCK
        await client.http.close()
    finally:
        stack.stop()
