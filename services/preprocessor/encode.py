"""Encodes prompts: the original tokens of turns that the ledger found, all other text by the
tokenizer."""

from collections.abc import Sequence

from schemas.conversation import RawPrompt
from schemas.errors import Invalid
from schemas.frames import unpack_ids
from services.ledger.encode import LedgerPrompt
from services.ledger.recall import Recall
from services.preprocessor.render import RenderedPrompt
from services.tokenization.encoder import Encoder
from services.tokenization.prompt_tokenizer import PromptTokenizer


def encode(
    rendered: RenderedPrompt, encoder: Encoder, recall: Recall | None
) -> tuple[Sequence[int], LedgerPrompt | None]:
    """The ids of a prompt, and the ledger's part of it if its turns were looked up."""
    if recall is None:
        return encoder.encode(rendered.text), None
    found = recall.encode(rendered.text, rendered.prefix, continues=rendered.continues)
    return found.ids, found


def encode_raw(prompt: RawPrompt, tokenizer: PromptTokenizer) -> list[int]:
    """The ids of a prompt of `/v1/completions`, text or ids, which goes to the model unchanged.

    Raises Invalid for an empty prompt, for bytes that are not ids and for ids outside the
    vocabulary.
    """
    if prompt.text is not None:
        ids = tokenizer.encode(prompt.text, prompt.add_special_tokens)
    else:
        try:
            ids = unpack_ids(prompt.token_ids)
        except ValueError as error:
            raise Invalid(
                f"the prompt is not a list of token ids: {error}", param="prompt"
            ) from None
        tokenizer.check_ids(ids, param="prompt")
    if not ids:
        raise Invalid("the prompt is empty", param="prompt")
    return ids
