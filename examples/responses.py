"""Two turns of the Responses API; the second continues the stored first one: python
examples/responses.py [URL]"""

import sys

from openai import OpenAI

client = OpenAI(
    base_url=(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000") + "/v1", api_key="any"
)
model = next(iter(client.models.list())).id

first = client.responses.create(model=model, input="Say hello in one sentence.")
print(first.output_text)
second = client.responses.create(model=model, input="And goodbye.", previous_response_id=first.id)
print(second.output_text)
if second.usage:
    print(
        f"{second.usage.input_tokens} input tokens, "
        f"{second.usage.input_tokens_details.cached_tokens} cached"
    )
