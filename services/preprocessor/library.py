"""Makes prompts as a library: loads a model and returns a conversation's token ids, without any
service."""

from schemas.conversation import Conversation
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import assemble
from services.runtime.config import PreprocessorConfig


def prompt_ids(model: str, conversation: Conversation) -> list[int]:
    """The token ids of a conversation's prompt, as the preprocessor sends them to a worker.

    `model` is a directory (or hub id) with the model's configuration, tokenizer and chat template;
    weights are not needed. Each call loads these files, in a second or two. For more prompts load
    them once:

        setup = ModelSetup.load(PreprocessorConfig(model=model))
        prompt = assemble(conversation, setup)

    The `Prompt` also has the text, the tools as the model sees them, and the stop ids.

    Raises OSError or ValueError where the model cannot be loaded, Invalid where the template
    refuses the conversation, ContextOverflow where it does not fit the model's context window.
    """
    return list(assemble(conversation, ModelSetup.load(PreprocessorConfig(model=model))).ids)
