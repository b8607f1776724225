"""Caches a request's tools in the forms that a prompt needs: agents send the same tools with every
request. Pure, but for the cache."""

import msgspec
from msgspec.structs import replace

from schemas.conversation import ToolSpec
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.tool_weights import tool_tokens
from services.runtime.caches.memo import Memo
from services.templates.tools import PromptTools

_encode = msgspec.json.Encoder().encode


class PromptToolCache:
    """The tools of one model's prompts, found by equal JSON. For any thread."""

    def __init__(self, setup: ModelSetup) -> None:
        self._tokenizer = setup.tokenizer
        self._marks = setup.encoder.marks
        self._forms: Memo[PromptTools] = Memo(setup.cache_bytes)

    def get(self, tools: list[ToolSpec]) -> PromptTools:
        """The forms of a request's tools. Raises RecursionError for schemas that are nested too
        deeply to be written."""
        marker = None if self._marks is None else self._marks.data

        def make(data: bytes) -> PromptTools:
            forms = PromptTools.of(tools, data, marker)
            return replace(forms, tokens=tool_tokens(forms.definitions, self._tokenizer))

        return self._forms.get(_encode(tools), make)
