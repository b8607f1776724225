"""Makes a model's `ThoughtSpelling`, with which a worker limits reasoning tokens. Pure and
CPU-bound."""

from schemas.requests import FENCE, ThoughtSpelling
from schemas.token_ids import pack_ids
from services.families import Family
from services.families.grammar.mentions import SIGNS_BEFORE_TAGS
from services.families.thought_markers import thought_markers
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.marker_tokens import marker_tokens
from services.tokenization.prompt_tokenizer import PromptTokenizer

_WORD = "a"


def thought_spelling(
    tokenizer: PromptTokenizer, family: Family, written: str = ""
) -> ThoughtSpelling | None:
    """The markers of a model of this family; None if the family reads no reasoning.
    `written`: the text that the chat template writes after reasoning."""
    markers = thought_markers(family, tokenizer.added, written)
    if markers is None:
        return None
    vocabulary = Vocabulary(tokenizer.backend)
    texts = [vocabulary.bytes_of(token).decode("latin-1") for token in range(tokenizer.vocab_size)]
    openers = list(map(_as_bytes, markers.openers))
    closers = list(map(_as_bytes, markers.closers))
    edges = list(map(_as_bytes, markers.edges))
    signs = map(_as_bytes, SIGNS_BEFORE_TAGS)
    added = {_as_bytes(text): token for text, token in tokenizer.added.items()}
    tokens = marker_tokens([*openers, *closers, *edges, FENCE], texts, added, signs)
    return ThoughtSpelling(
        token_texts={text: pack_ids(ids) for text, ids in tokens.items()},
        openers=openers,
        closers=closers,
        edges=edges,
        end=pack_ids(_ids_after_text(tokenizer, markers.end)),
        answer=pack_ids(_ids_after_text(tokenizer, markers.answer)),
    )


def _ids_after_text(tokenizer: PromptTokenizer, text: str) -> list[int]:
    """The ids of a text that follows another: some tokenizers begin a text with a blank."""
    before = tokenizer.encode(_WORD)
    both = tokenizer.encode(_WORD + text)
    if both[: len(before)] != before:
        return tokenizer.encode(text)
    return both[len(before) :]


def _as_bytes(text: str) -> str:
    """A text with a character for each of its bytes: tokens may split characters."""
    return text.encode().decode("latin-1")
