"""A prompt of `/v1/completions`: text or ids that go to the model as they are."""

from schemas.conversation import RawPrompt
from schemas.errors import Invalid
from schemas.frames import unpack_ids
from services.preprocessor.tokens import PromptTokenizer


def encode_raw(prompt: RawPrompt, tokenizer: PromptTokenizer) -> list[int]:
    """The ids of a raw prompt: no template, no preamble, nothing stripped.

    Raises Invalid for an empty prompt, for ids that are none and for ids outside the vocabulary.
    """
    if prompt.text is not None:
        ids = tokenizer.encode(prompt.text, prompt.add_special_tokens)
    else:
        try:
            ids = unpack_ids(prompt.token_ids)
        except ValueError as error:
            raise Invalid(f"the prompt is not a list of token ids: {error}", param="prompt") from None
        tokenizer.check_ids(ids, param="prompt")
    if not ids:
        raise Invalid("the prompt is empty", param="prompt")
    return ids
