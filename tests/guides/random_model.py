"""A model without weights: it writes random tokens of those that a grammar allows, and now and then
a marker."""

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import llguidance
import numpy
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from schemas.conversation import Grammar, ToolSpec
from schemas.events import BlockStart, Delta, FinishReason
from services.families import Family, open_parser
from services.families.writing import Tags
from services.guides.client_grammar import embedded

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""Codex' grammar of `apply_patch`."""


class ByteTokenizer:
    """One token for each byte, and added tokens."""

    def __init__(self, added: Sequence[str]) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.backend = Tokenizer(BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend.decoder = decoders.ByteLevel()
        self.backend.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in ("<eos>", *added)]
        )
        self.tokens = {text: self.backend.token_to_id(text) or 0 for text in added}

    @cached_property
    def library(self) -> Any:
        """The tokenizer of llguidance."""
        from llguidance.hf import from_tokenizer
        from transformers import PreTrainedTokenizerFast

        make: Any = PreTrainedTokenizerFast
        return from_tokenizer(make(tokenizer_object=self.backend, eos_token="<eos>"))

    def encode(self, text: str) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=False))

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether the text is a whole one of this grammar, in Lark."""
        lark = llguidance.LLMatcher.grammar_from_lark(grammar)
        matcher, ids = llguidance.LLMatcher(self.library, lark), self.encode(text)
        assert not matcher.is_error(), matcher.get_error()
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


class RandomModel:
    """Writes turns."""

    def __init__(self, tokenizer: ByteTokenizer, grammar: str) -> None:
        self._tokenizer = tokenizer
        self._matcher = llguidance.LLMatcher(
            tokenizer.library, llguidance.LLMatcher.grammar_from_lark(grammar)
        )
        assert not self._matcher.is_error(), self._matcher.get_error()

    def write(
        self, rng: random.Random, snippets: Sequence[str], most: int = 1500
    ) -> tuple[str, bool]:
        """A turn, and whether it came to its end."""
        matcher, tokenizer = self._matcher, self._tokenizer
        matcher.reset()
        encoded = [tokenizer.encode(snippet) for snippet in snippets]
        written: list[int] = []
        while len(written) < most:
            if matcher.is_stopped() or (matcher.is_accepting() and rng.random() < 0.05):
                return tokenizer.decode(written), True
            if rng.random() < 0.4:
                for token in rng.choice(encoded):
                    if matcher.is_stopped() or not matcher.try_consume_tokens([token]):
                        break
                    written.append(token)
                continue
            mask = numpy.frombuffer(matcher.compute_bitmask(), dtype=numpy.uint8)
            bits = numpy.flatnonzero(numpy.unpackbits(mask, bitorder="little"))
            markers = tokenizer.tokens.values()
            allowed = [int(i) for i in bits if i < 256 or int(i) in markers]
            assert allowed or matcher.is_accepting(), tokenizer.decode(written)
            if not allowed:
                return tokenizer.decode(written), True
            token = rng.choice(allowed)
            assert matcher.try_consume_tokens([token]) == 1, matcher.get_error()
            written.append(token)
        return tokenizer.decode(written), False


def calls_of(
    family: Family,
    tools: Sequence[ToolSpec],
    text: str,
    *,
    ended: bool,
    in_reasoning: bool = False,
    prefix: str = "",
) -> tuple[list[tuple[str, str, bool]], str]:
    """The calls that the family's parser reads (name, arguments, complete), and the turn's text."""
    parser = open_parser(family.name, tools=tools, in_reasoning=in_reasoning, prefix=prefix)
    events = parser.feed(text)
    events += parser.finish(FinishReason.STOP if ended else FinishReason.LENGTH)
    blocks: list[BlockStart] = []
    texts: list[str] = []
    calls: list[tuple[str, str, bool]] = []
    prose = ""
    for event in events:
        if isinstance(event, BlockStart):
            blocks.append(event)
            texts.append("")
        elif isinstance(event, Delta):
            texts[-1] += event.text
        elif blocks[-1].kind == "tool_use":
            calls.append((blocks[-1].name or "", texts[-1], event.complete))
        elif blocks[-1].kind == "text":
            prose += texts[-1]
    return calls, prose


def may_stay_open(found: Family, text: str, calls: int) -> bool:
    """Whether a call of the text may be incomplete at its end: a value shows the opening of another
    call, or a key is written twice, which the grammar of a tool without `strict` cannot exclude."""
    opening = found.style.call.partition("{")[0].strip()
    return text.count(opening) > calls or repeats_key(found, text)


def repeats_key(found: Family, text: str) -> bool:
    if isinstance(found.style.arguments, Tags):
        before = found.style.arguments.template.partition("{key}")[0]
        for call in text.split(found.style.call.partition("{name}")[0].split("\n")[-1]):
            keys = re.findall(rf"{re.escape(before)}([^<>\"]+)", call)
            if len(keys) > len(set(keys)):
                return True
    repeated = False

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        value = dict(pairs)
        repeated |= len(value) < len(pairs)
        return value

    decoder = json.JSONDecoder(object_pairs_hook=read_object)
    for brace in re.finditer("{", text):
        with suppress(ValueError):
            decoder.raw_decode(text, brace.start())
    return repeated


def whole(grammar: Grammar, **how: Any) -> str:
    """The Lark grammar of a client's grammar alone, embedded in this way."""
    start, lines = embedded(grammar, "g1_", **how)
    return "\n".join([f"start: {start}", *lines])


def in_json(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
