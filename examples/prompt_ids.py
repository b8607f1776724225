"""The prompt core alone: a conversation as the token ids of a model: python examples/prompt_ids.py
[MODEL]

MODEL is a directory or hub id with a tokenizer and a chat template. Without it, the demo model is
made, in seconds.
"""

import sys
import tempfile
from pathlib import Path

from schemas.conversation import Conversation, Message, Text, ToolSpec
from services.preprocessor.library import prompt_ids
from turnwire_tools.script.demo_model import build_demo_model

conversation = Conversation(
    model="example",
    system=[Text("You are a coding agent.")],
    messages=[Message("user", [Text("What is in this directory?")])],
    tools=[
        ToolSpec(
            "ls", "Lists files.", {"type": "object", "properties": {"path": {"type": "string"}}}
        )
    ],
)
with tempfile.TemporaryDirectory() as directory:
    model = sys.argv[1] if len(sys.argv) > 1 else str(build_demo_model(Path(directory)))
    ids = prompt_ids(model, conversation)
print(f"{len(ids)} tokens: {ids}")
