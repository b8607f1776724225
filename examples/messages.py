"""Streams one turn of the Messages API: python examples/messages.py [URL]"""

import sys

from anthropic import Anthropic

client = Anthropic(
    base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000", api_key="any"
)
model = next(iter(client.models.list())).id

with client.messages.stream(
    model=model,
    max_tokens=1024,
    thinking={"type": "adaptive"},
    messages=[{"role": "user", "content": "Say hello in one sentence."}],
) as stream:
    for event in stream:
        if event.type == "thinking":
            print(event.thinking, end="", flush=True)
        elif event.type == "text":
            print(event.text, end="", flush=True)
    usage = stream.get_final_message().usage
print(
    f"\n{usage.input_tokens} input tokens, {usage.cache_read_input_tokens} cached, "
    f"{usage.output_tokens} output"
)
