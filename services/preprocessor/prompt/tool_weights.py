"""Estimates what tools take of prompts, and keeps the heaviest for heartbeats. Pure."""

import json
from collections.abc import Sequence
from typing import Final

from schemas.control import ToolWeight
from services.templates.chat_template import TemplateTool
from services.tokenization.prompt_tokenizer import PromptTokenizer

KEPT_S: Final = 3600.0
_COUNTED_CHARS: Final = 8192
"""About how much of a request's tools is encoded: some milliseconds, once for all requests with the
same tools."""


def tool_tokens(definitions: Sequence[TemplateTool], tokenizer: PromptTokenizer) -> int:
    """Returns the tokens of definitions as JSON, by a sample of many. Templates write them in
    several forms, so the exact number would take another prompt."""
    texts = [json.dumps(definition, ensure_ascii=False) for definition in definitions]
    characters = sum(map(len, texts))
    if not characters:
        return 0
    sample = "".join(texts[:: 1 + characters // _COUNTED_CHARS])
    return round(len(tokenizer.encode(sample)) * characters / len(sample))


class HeaviestTools:
    """The heaviest tools of the last hour."""

    def __init__(self) -> None:
        self._weight: ToolWeight | None = None
        self._seen = 0.0
        """When a prompt had them last."""

    def note(self, weight: ToolWeight, now: float) -> None:
        """Takes the tools of a prompt. `now`: seconds by any clock."""
        heaviest = self.at(now)
        if heaviest is None or weight.tokens >= heaviest.tokens:
            self._weight = weight
            self._seen = now

    def at(self, now: float) -> ToolWeight | None:
        """Returns the heaviest tools; None if there were none."""
        return self._weight if now - self._seen < KEPT_S else None
