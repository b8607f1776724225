"""Streams one turn of Chat Completions: python examples/chat.py [URL]"""

import sys

from openai import OpenAI

client = OpenAI(
    base_url=(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000") + "/v1", api_key="any"
)
model = next(iter(client.models.list())).id

for chunk in client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Say hello in one sentence."}],
    stream=True,
    stream_options={"include_usage": True},
):
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(
            f"\n{chunk.usage.prompt_tokens} input tokens, {chunk.usage.completion_tokens} output "
            "tokens"
        )
