#!/usr/bin/env python3
"""Stands in for Claude Code: `-p QUESTION --tools NAMES`. Calls no tool in earnest."""

import json
import os
import sys
import urllib.request
from typing import Any

question, names = sys.argv[2], sys.argv[4].split(",")
schema = {"type": "object"}
messages: list[dict[str, Any]] = [
    {"role": "user", "content": f"<system-reminder>Be brief.</system-reminder>\n{question}"}
]
for _ in range(3):
    body = {
        "model": "toy",
        "max_tokens": 100,
        "messages": messages,
        "tools": [{"name": name, "input_schema": schema} for name in names],
    }
    request = urllib.request.Request(
        os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    answer = json.load(urllib.request.urlopen(request))
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    if not calls:
        break
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": "notes.txt"} for call in calls
    ]
    messages += [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": results},
    ]
