"""Reads requests that real clients sent, from a folder of recordings: files with `{"body": {...}}`.

They are sent unchanged, except for the model's name and a last text that names the script.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.codex import numbered
from bench.prompts import NUMBER

FILES = {
    "messages": "claude-code-*/16-long-prefix-session-*/01-POST-v1-messages.json",
    "responses": "codex-*/*/01-POST-v1-responses.json",
}
"""Long sessions of Claude Code, the second turns; Codex, the second turns."""


def recorded_bodies(
    folder: Path, api: str, model: str, play: str, seed: int = 0
) -> Sequence[Callable[[int], bytes]]:
    """Returns, for each recording of `api` with tools, a function from a number to a body."""
    found = []
    for path in sorted(folder.glob(FILES[api])) if api in FILES else ():
        body: dict[str, Any] = json.loads(path.read_bytes())["body"]
        if not body.get("tools"):
            continue
        body |= {"model": model, "stream": True}
        ask = f"Please go on ({NUMBER.decode()}). [[play {play}]]"
        if api == "messages":
            body["messages"] = [
                *body["messages"],
                {"role": "user", "content": [{"type": "text", "text": ask}]},
            ]
        else:
            content = [{"type": "input_text", "text": ask}]
            body["input"] = [
                *body["input"],
                {"type": "message", "role": "user", "content": content},
            ]
        found.append(numbered(json.dumps(body, separators=(",", ":")).encode(), seed))
    return found
