"""Guides the decoding of engines that choose tokens in this process, with llguidance if it is
installed (extra `guided`)."""

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy
from cachetools import LRUCache
from numpy.typing import NDArray

from schemas.conversation import OutputFormat
from schemas.errors import Invalid
from services.guides.writer import SPACING
from services.worker.engine import EngineRequest

_COMPILED = 32
"""Grammars of turns that are kept, each of up to 4 MiB. Compiling one for 30 tools takes 6 to
25 ms, in which no turn of the engine decodes; copying takes 10 us."""


class Guide:
    """One request's grammar, and the position of its output in it."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def advance(self, tokens: Sequence[int]) -> None:
        """Advances over decoded tokens. A token that does not fit (an end token, or unguided text
        of an earlier attempt) ends the guidance."""
        if tokens and not self._matcher.is_stopped():
            self._matcher.try_consume_tokens(list(tokens))

    def allowed(self, vocabulary: int, stop_ids: Sequence[int]) -> NDArray[numpy.bool_] | None:
        """Returns for each token whether the grammar allows it next; None if every token is. The
        stop ids are allowed if the output is complete, and alone if nothing can follow."""
        matcher = self._matcher
        if matcher.is_error():
            return None
        if matcher.is_stopped():
            allowed = numpy.zeros(vocabulary, dtype=numpy.bool_)
        else:
            mask = numpy.frombuffer(matcher.compute_bitmask(), dtype=numpy.uint8)
            bits = numpy.unpackbits(mask, count=vocabulary, bitorder="little")
            allowed = bits.astype(numpy.bool_)
        if stop_ids:
            allowed[list(stop_ids)] = matcher.is_stopped() or matcher.is_accepting()
        return allowed if allowed.any() else None


class NoGuide:
    """Takes the place of a guide for free output."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Does nothing."""

    def allowed(self, vocabulary: int, stop_ids: Sequence[int]) -> None:
        """Returns None: every token is allowed."""


NO_GUIDE = NoGuide()


class Guides:
    """Makes guides for one tokenizer. The construction takes a second."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        """Raises ImportError where llguidance is not installed, ValueError for a tokenizer that it
        cannot read."""
        self._library = importlib.import_module("llguidance")
        self._tokenizer = importlib.import_module("llguidance.hf").from_tokenizer(
            tokenizer, n_vocab=vocabulary
        )
        self._turns: LRUCache[str, Any] = LRUCache(_COMPILED)
        """Grammar of a turn → its matcher at the beginning."""

    def open(self, request: EngineRequest) -> Guide | None:
        """Makes the guide of a request; None if its output is free. Raises Invalid, with the
        library's message, for a schema that it does not support."""
        if request.grammar:
            return self._open_turn(request.grammar)
        if request.guided is not None:
            return self._open_form(request.guided)
        return None

    def _open_turn(self, grammar: str) -> Guide:
        matcher = self._turns.get(grammar)
        if matcher is None:
            lark = self._library.LLMatcher.grammar_from_lark(grammar)
            matcher = self._matcher(lark, "tools", "tools")
            self._turns[grammar] = matcher
        return Guide(matcher.deep_copy())

    def _open_form(self, form: OutputFormat) -> Guide:
        schema: Any = {"type": "object"}
        if form.kind == "json_schema" and form.schema is not None:
            schema = form.schema
        matcher = self._library.LLMatcher
        try:
            grammar = matcher.grammar_from_json_schema(
                msgspec.json.encode(schema).decode(), defaults=SPACING
            )
        except ValueError as error:
            raise Invalid(f"the schema cannot be kept to: {error}", param="format") from None
        return Guide(self._matcher(grammar, "schema", "format"))

    def _matcher(self, grammar: Any, what: str, param: str) -> Any:
        matcher = self._library.LLMatcher(self._tokenizer, grammar)
        problem = matcher.get_error()
        if problem:
            reason = problem.splitlines()[0]  # the other lines quote the grammar
            raise Invalid(f"the {what} cannot be kept to: {reason}", param=param)
        return matcher


def load_guides(model: str, vocabulary: int, *, trust_remote_code: bool) -> Guides | None:
    """Makes the guides of a model directory or hub id; None without llguidance or a tokenizer that
    it can read."""
    with contextlib.suppress(ImportError, OSError, ValueError, TypeError, AttributeError):
        importlib.import_module("llguidance")
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
        return Guides(tokenizer, max(vocabulary, len(tokenizer)))
    return None
