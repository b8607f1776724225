"""LiteLLM: code with a tool loop."""

from services.cli.connect.client import library

CODE = '''\
"""A loop with one tool. Needs: pip install litellm"""

import json
import sys
from pathlib import Path

import litellm

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": PATH}}

messages = [{"role": "user", "content": " ".join(sys.argv[1:])}]
while True:
    answer = litellm.completion($litellm_model, messages, api_base=$base, api_key=$key, tools=[READ])
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        path = json.loads(call.function.arguments)["path"]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": Path(path).read_text()})
print(message.content)
'''

CLIENT = library("LiteLLM", CODE, start="python agent.py 'Read README.md'")
