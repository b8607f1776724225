"""Encodes prompts: the original tokens of turns that the ledger found, all other text by the
tokenizer."""

from array import array
from collections.abc import Sequence

from schemas.conversation import RawPrompt
from schemas.errors import Invalid
from schemas.frames import unpack_ids
from services.ledger.encode import LedgerPrompt
from services.ledger.match import Outcome
from services.ledger.recall import Recall
from services.preprocessor.render import RenderedPrompt
from services.tokenization.encoder import Encoder
from services.tokenization.prompt_tokenizer import PromptTokenizer

NOT_RECALLED = LedgerPrompt(array("I"), Outcome.NOT_LOOKED_UP, 0, None)
"""The ledger's part of a prompt with turns that were not looked up."""


def encode(
    rendered: RenderedPrompt, encoder: Encoder, recall: Recall | None
) -> tuple[Sequence[int], LedgerPrompt]:
    """The ids of a prompt, and the ledger's part of it."""
    if recall is None:
        return encoder.encode(rendered.text), NOT_RECALLED
    recalled = recall.encode(rendered.text, rendered.prefix, continues=rendered.continues)
    return recalled.ids, recalled


def encode_raw(prompt: RawPrompt, tokenizer: PromptTokenizer) -> list[int]:
    """The ids of a prompt of `/v1/completions`, text or ids, which goes to the model unchanged.

    Raises Invalid for an empty prompt, for bytes that are not ids and for ids outside the
    vocabulary.
    """
    if prompt.text is not None:
        ids = tokenizer.encode(prompt.text, prompt.add_special_tokens)
    else:
        ids = _unpack(prompt.token_ids)
        tokenizer.check_ids(ids, param="prompt")
    if not ids:
        raise Invalid("the prompt is empty", param="prompt")
    return ids


def _unpack(packed: bytes) -> list[int]:
    try:
        return unpack_ids(packed)
    except ValueError as error:
        raise Invalid(f"the prompt is not a list of token ids: {error}", param="prompt") from None
