"""Makes the prompts of `/v1/completions`, text or ids, which go to the model unchanged. Pure."""

from array import array

from schemas.conversation import Conversation, RawPrompt
from schemas.errors import Invalid
from schemas.token_ids import unpack_ids
from services.ledger.lookup.match import Outcome
from services.ledger.prompt.encode import EncodedPrompt
from services.preprocessor.prompt.render import RenderedPrompt, allowed_tools, enforced_format
from services.tokenization.prompt_tokenizer import PromptTokenizer


def render_raw(conversation: Conversation, prompt: RawPrompt) -> RenderedPrompt:
    """The prompt as text, and the settings of the conversation that count for it, too."""
    return RenderedPrompt(
        marked_text=prompt.text or "",
        plain_text=prompt.text or "",
        allowed_tools=allowed_tools(conversation),
        enforced_format=enforced_format(conversation),
    )


def encode_raw(prompt: RawPrompt, tokenizer: PromptTokenizer) -> EncodedPrompt:
    """The ids of a prompt.

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
    return EncodedPrompt(array("I", ids), Outcome.NOT_LOOKED_UP, 0, None)


def _unpack(packed: bytes) -> list[int]:
    try:
        return unpack_ids(packed)
    except ValueError as error:
        raise Invalid(f"the prompt is not a list of token ids: {error}", param="prompt") from None
