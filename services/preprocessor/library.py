"""Makes prompts for use as a library, without any service."""

from schemas.conversation import Conversation, Unseal, opens_nothing
from services.ledger.turn_ledger import Ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.output_settings import check_sampling, output_settings
from services.preprocessor.prompt.prompt_maker import Prompt, PromptMaker
from services.preprocessor.prompt.raw_prompt import make_raw_prompt
from services.runtime.config.stages import PreprocessorConfig


def assemble(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    unseal: Unseal = opens_nothing,
    ledger: Ledger | None = None,
) -> Prompt:
    """The prompt of a conversation, for use as a library. Raises as `PromptMaker.make`.

    `ledger`: its turns, if there are any. A caller with a ledger calls `Ledger.keep` with the
    result. A caller that makes many prompts keeps a `PromptMaker`, which caches their tools.
    """
    if conversation.prompt is not None:
        return make_raw_prompt(conversation, conversation.prompt, setup.tokenizer)
    return PromptMaker(setup, ledger or Ledger(setup.encoder)).make(conversation, unseal)


def prompt_ids(model: str, conversation: Conversation) -> list[int]:
    """The token ids of a conversation's prompt, as the preprocessor sends them to a worker. For use
    as a library, without any service.

    `model` is a directory (or hub id) with the model's configuration, tokenizer and chat template;
    weights are not needed. Each call loads these files, in a second or two. For more prompts load
    them once:

        setup = ModelSetup.load(PreprocessorConfig(model=model))
        prompt = assemble(conversation, setup)

    The `Prompt` also has the text, and the tools as the model sees them; `output_settings` finds
    the stop ids.

    Raises OSError or ValueError where the model cannot be loaded, Invalid where the template
    refuses the conversation, ContextOverflow where it does not fit the model's context window.
    """
    setup = ModelSetup.load(PreprocessorConfig(model=model))
    check_sampling(conversation.sampling, setup.tokenizer.vocab_size)
    prompt = assemble(conversation, setup)
    output_settings(conversation.sampling, setup, len(prompt.ids))
    return list(prompt.ids)
