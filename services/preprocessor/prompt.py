"""Makes the prompt of a conversation in five steps: strip, restore, render, encode, limit. Pure and
CPU-bound.

| step    | file                                | result                                    |
|---------|-------------------------------------|-------------------------------------------|
| strip   | `strip.py`                          | the conversation that the model is to see |
| restore | `services/ledger/restore.py`        | its earlier turns as the model wrote them |
| render  | `render.py`                         | the text, by the chat template, whole     |
| encode  | `encode.py` here and in the ledger  | ids: original ones of turns, others of    |
|         |                                     | the text                                  |
| limit   | `limit.py`                          | how many tokens may be decoded            |
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, OutputFormat, RawPrompt, Sampling, ToolSpec, Unseal
from schemas.errors import Invalid
from schemas.frames import PromptImage
from services.images.prompt_images import place_images
from services.ledger.encode import LedgerPrompt
from services.ledger.recall import Recall
from services.preprocessor.encode import NOT_RECALLED, encode, encode_raw
from services.preprocessor.limit import check_sampling, limit_output
from services.preprocessor.model import ModelSetup
from services.preprocessor.render import RenderedPrompt, as_rendered, render
from services.preprocessor.strip import strip
from services.templates.tools import PromptTools
from services.tokenization.model_files import with_defaults

_TOO_DEEP = "a tool's schema, a call's arguments or a template variable is nested too deeply"

LookUp: TypeAlias = Callable[[Conversation, list[ToolSpec]], Recall]
"""Looks up the turns of a stripped conversation, with its tools as the model sees them:
`LedgerReader.look_up`, or `look_up_fetched`, which raises `UnfetchedTurns`."""
OnStep: TypeAlias = Callable[[str], None]
"""Called at the start of `strip`, `ledger` (the step restore, if there is a ledger), `render` and
`encode`, with this name. The step limit is not reported; a raw prompt only has `encode`."""


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
    """The tools, deferred ones included, under the names and with the schemas that the model
    sees."""
    parser_tools: bytes = b"[]"
    """The tools as JSON, reduced to the fields that parsers need."""
    allowed_tools: list[str] = []
    """The only tools that may be called, under the names that the model sees; empty: all."""
    enforced_format: OutputFormat | None = None
    """The format that the engine enforces; None: the output is free."""
    max_tokens: int
    window_limited: bool
    """Reaching `max_tokens` means that the context window is full."""
    stop_ids: list[int]
    sampling: Sampling
    """The client's settings, with the model's defaults for the others, and `max_tokens` set."""
    recalled: LedgerPrompt = NOT_RECALLED
    """The ledger's part."""
    images: list[PromptImage] = []


def no_step(name: str) -> None:
    """An `OnStep` that does nothing."""


def assemble(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    window: int | None = None,
    limit: bool = True,
    unseal: Unseal | None = None,
    look_up: LookUp | None = None,
    on_step: OnStep = no_step,
) -> Prompt:
    """The prompt of a conversation.

    `window`: the workers' context window in tokens, if known. `limit` False skips the checks, to
    count or show a prompt, which the ledger then does not keep. `unseal` opens sealed reasoning.
    `look_up` looks up earlier turns in the ledger; its exceptions propagate.

    Raises Invalid where the conversation, its stop strings or ids, a tool choice or a template
    variable cannot be served, ContextOverflow where prompt and answer do not fit.
    """
    if limit:
        check_sampling(conversation.sampling, setup.tokenizer.vocab_size)
    try:
        if conversation.prompt is not None:
            on_step("encode")
            encoded = _encode_raw_prompt(conversation, conversation.prompt, setup)
        else:
            encoded = _encode_conversation(conversation, setup, unseal, look_up, on_step)
    except RecursionError:
        raise Invalid(_TOO_DEEP) from None

    requested = conversation.sampling.max_tokens
    max_tokens = requested or 0
    window_limited = False
    if limit:
        cap = setup.card.max_output_tokens or None
        max_tokens, window_limited = limit_output(
            len(encoded.ids), requested, setup.window(window), cap
        )
        if encoded.recall is not None:
            encoded.recall.keep(encoded.recalled)

    rendered = encoded.rendered
    sampling = with_defaults(conversation.sampling, setup.sampling)
    return Prompt(
        ids=encoded.ids,
        text=setup.encoder.plain(rendered.text),
        in_reasoning=rendered.in_reasoning,
        prefix=rendered.prefix,
        tools=encoded.tools.rendered,
        parser_tools=encoded.tools.parser_json,
        allowed_tools=rendered.allowed_tools,
        enforced_format=rendered.enforced_format,
        max_tokens=max_tokens,
        window_limited=window_limited,
        stop_ids=_stop_ids(conversation.sampling, setup),
        sampling=replace(sampling, max_tokens=max_tokens),
        recalled=encoded.recalled,
        images=place_images(encoded.ids, rendered.images),
    )


class _EncodedPrompt(Struct, frozen=True):
    """The text of a prompt and its ids, with what made them."""

    rendered: RenderedPrompt
    ids: Sequence[int]
    tools: PromptTools
    recall: Recall | None = None
    """None: nothing was looked up in the ledger."""
    recalled: LedgerPrompt = NOT_RECALLED


def _encode_raw_prompt(
    conversation: Conversation, prompt: RawPrompt, setup: ModelSetup
) -> _EncodedPrompt:
    """A prompt that the client sent whole: it goes to the model unchanged."""
    rendered = as_rendered(conversation, prompt)
    return _EncodedPrompt(rendered, encode_raw(prompt, setup.tokenizer), PromptTools())


def _encode_conversation(
    conversation: Conversation,
    setup: ModelSetup,
    unseal: Unseal | None,
    look_up: LookUp | None,
    on_step: OnStep,
) -> _EncodedPrompt:
    """The steps strip, restore, render and encode."""
    on_step("strip")
    tools = setup.tools_of(conversation.tools)
    conversation = strip(conversation, preamble=setup.strip_preamble)

    recall: Recall | None = None
    if look_up is not None:
        on_step("ledger")
        recall = look_up(conversation, tools.rendered)
        conversation = recall.restore()

    on_step("render")
    rendered = render(conversation, setup, tools, unseal)

    on_step("encode")
    ids, recalled = encode(rendered, setup.encoder, recall)
    return _EncodedPrompt(rendered, ids, tools, recall, recalled)


def _stop_ids(sampling: Sampling, setup: ModelSetup) -> list[int]:
    """The ids that end a turn, the client's among them, each once."""
    ids = list(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ids = [*setup.stop_ids, *ids]
    return list(dict.fromkeys(ids))
