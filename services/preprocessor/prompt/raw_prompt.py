"""Makes the prompts of `/v1/completions`, text or ids, which go to the model unchanged. Pure."""

from array import array

from schemas.conversation import Conversation, RawPrompt
from schemas.errors import Invalid
from schemas.token_ids import unpack_ids
from services.ledger.lookup.match import Outcome
from services.ledger.prompt.prompts import EncodedPrompt, RenderedPrompt
from services.preprocessor.prompt.prompt_maker import Prompt
from services.preprocessor.prompt.render import allowed_tools, enforced_format
from services.tokenization.prompt_tokenizer import PromptTokenizer


def make_raw_prompt(
    conversation: Conversation, raw: RawPrompt, tokenizer: PromptTokenizer
) -> Prompt:
    """The prompt of a conversation that is sent as text or ids (`Conversation.prompt`).

    Raises Invalid for an empty prompt, for bytes that are not ids, for ids outside the vocabulary
    and for a tool choice that cannot be served.
    """
    text = raw.text or ""
    rendered = RenderedPrompt(
        marked_text=text,
        plain_text=text,
        allowed_tools=allowed_tools(conversation),
        enforced_format=enforced_format(conversation),
    )
    ids = array("I", _ids(raw, tokenizer))
    encoded = EncodedPrompt(ids, Outcome.NOT_LOOKED_UP, 0, None)
    return Prompt(rendered=rendered, encoded=encoded)


def _ids(raw: RawPrompt, tokenizer: PromptTokenizer) -> list[int]:
    if raw.text is not None:
        ids = tokenizer.encode(raw.text, raw.add_special_tokens)
    else:
        ids = _unpack(raw.token_ids)
        tokenizer.check_ids(ids, param="prompt")
    if not ids:
        raise Invalid("the prompt is empty", param="prompt")
    return ids


def _unpack(packed: bytes) -> list[int]:
    try:
        return unpack_ids(packed)
    except ValueError as error:
        raise Invalid(f"the prompt is not a list of token ids: {error}", param="prompt") from None
