"""Makes the prompt of a conversation, one module a step: strip, restore, render, encode, limit. Pure and CPU-bound.

| step    | module                                  | result                                                     |
|---------|-----------------------------------------|------------------------------------------------------------|
| strip   | `strip`                                 | the conversation that the model is to see                  |
| restore | `services/ledger/recall.py`             | its earlier turns as the model wrote them                  |
| render  | `render`                                | the text, by the chat template, whole                      |
| encode  | `encode`, `services/ledger/recall.py`   | the token ids: original ones of turns, others of the text  |
| limit   | `limit`                                 | how many tokens may be decoded, or a refusal               |
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, Sampling, ToolSpec
from schemas.errors import Invalid
from services.ledger.recall import Recall, RecalledPrompt
from services.preprocessor.encode import encode, encode_raw
from services.preprocessor.limit import OutputLimit, check_sampling, limit_output
from services.preprocessor.model import ModelSetup
from services.preprocessor.render import RenderedPrompt, render
from services.preprocessor.strip import strip
from services.runtime.config import PreprocessorConfig
from services.templates.messages import Unseal
from services.templates.tools import PromptTools
from services.tokenization.model_files import with_defaults

_TOO_DEEP = "a tool's schema, a call's arguments or a template variable is nested too deeply"

Remember: TypeAlias = Callable[[Conversation, list[ToolSpec]], Recall]
"""Looks up the turns of a stripped conversation, with its tools as the model sees them: `Ledger.recall`."""
OnStep: TypeAlias = Callable[[str], None]
"""Called at the start of each step with its name: `strip`, `ledger`, `render`, `encode`."""


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt, with what the worker and the parser shard need."""

    ids: Sequence[int]
    """An array if the ids come from the encoder: `pack_ids` packs it without a conversion."""
    text: str
    """"": a prompt that was sent as ids."""
    in_reasoning: bool
    """The prompt ends inside an open reasoning block."""
    prefix: str
    """The end of the prompt, if it opens a forced call: it belongs to the model's turn."""
    tools: list[ToolSpec]
    """The tools under the names and with the schemas that the model sees, deferred ones included."""
    parser_tools: bytes = b"[]"
    """The tools as JSON, reduced to the fields that parsers need."""
    max_tokens: int
    window_limited: bool
    """Reaching `max_tokens` means that the context window is full."""
    stop_ids: list[int]
    sampling: Sampling
    """The client's settings, with the model's defaults for the others, and `max_tokens` set."""
    stripped_lines: int
    """Billing header lines that were removed."""
    found: RecalledPrompt | None = None
    """The ledger's part, if there is a ledger."""


def no_step(name: str) -> None:
    """An `OnStep` that does nothing."""


def prompt_ids(model: str, conversation: Conversation) -> list[int]:
    """The token ids of a conversation's prompt, as the preprocessor sends them to a worker, without any service.

    `model` is a directory (or hub id) with the model's configuration, tokenizer and chat template; weights are not
    needed. Each call loads these files, in a second or two. For more prompts load them once:

        setup = ModelSetup.load(PreprocessorConfig(model=model))
        prompt = assemble(conversation, setup)

    The `Prompt` also has the text, the tools as the model sees them, and the stop ids.

    Raises OSError or ValueError where the model cannot be loaded, Invalid where the template refuses the conversation,
    ContextOverflow where it does not fit the model's context window.
    """
    return list(assemble(conversation, ModelSetup.load(PreprocessorConfig(model=model))).ids)


def assemble(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    window: int | None = None,
    limit: bool = True,
    unseal: Unseal | None = None,
    remember: Remember | None = None,
    on_step: OnStep = no_step,
) -> Prompt:
    """The prompt of a conversation.

    `window`: the workers' context window in tokens, if known. `limit` False skips the checks, to count or show a
    prompt, which the ledger then does not keep. `unseal` opens sealed reasoning. `remember` looks up earlier turns in
    the ledger; its exceptions propagate.

    Raises Invalid where the conversation, its stop strings or ids, a tool choice or a template variable cannot be
    served, ContextOverflow where prompt and answer do not fit.
    """
    if limit:
        check_sampling(conversation.sampling, setup.tokenizer.vocab_size)
    tools, lines = PromptTools(), 0
    recall: Recall | None = None
    found: RecalledPrompt | None = None
    ids: Sequence[int]
    try:
        if (raw := conversation.prompt) is not None:
            rendered = RenderedPrompt(text=raw.text or "")
            on_step("encode")
            ids = encode_raw(raw, setup.tokenizer)
        else:
            on_step("strip")
            tools = setup.tools_of(conversation.tools)
            stripped, lines = strip(conversation, headers=setup.strip_preamble)
            if remember is not None:
                on_step("ledger")
                recall = remember(stripped, tools.rendered)
                stripped = recall.restore()
            on_step("render")
            rendered = render(stripped, setup, tools, unseal)
            on_step("encode")
            ids, found = encode(rendered, setup.encoder, recall)
    except RecursionError:
        raise Invalid(_TOO_DEEP) from None
    requested = conversation.sampling.max_tokens
    output = OutputLimit(requested or 0, False)
    if limit:
        output = limit_output(len(ids), requested, setup.window(window), setup.card.max_output_tokens or None)
        if recall is not None and found is not None:
            recall.keep(found)
    return Prompt(
        ids=ids,
        text=setup.encoder.plain(rendered.text),
        in_reasoning=rendered.in_reasoning,
        prefix=rendered.prefix,
        tools=tools.rendered,
        parser_tools=tools.parser_json,
        max_tokens=output.max_tokens,
        window_limited=output.window_limited,
        stop_ids=_stop_ids(conversation.sampling, setup),
        sampling=replace(with_defaults(conversation.sampling, setup.sampling), max_tokens=output.max_tokens),
        stripped_lines=lines,
        found=found,
    )


def _stop_ids(sampling: Sampling, setup: ModelSetup) -> list[int]:
    own = () if sampling.ignore_eos else setup.stop_ids
    return list(dict.fromkeys((*own, *sampling.stop_token_ids)))
