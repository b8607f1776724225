"""Makes the prompt of a conversation in five steps: strip, restore, render, encode, limit. Pure and
CPU-bound.

| step    | file                                       | result                                                    |
|---------|--------------------------------------------|-----------------------------------------------------------|
| strip   | `strip.py`, `render.py`, `pairs.py`        | the conversation that the model is to see                 |
| restore | `services/ledger/restore.py`               | its earlier turns as the model wrote them                 |
| render  | `render.py`                                | the text, by the chat template, whole                     |
| encode  | `encode.py`, `services/ledger/encode.py`   | the token ids: original ones of turns, others of the text |
| limit   | `limit.py`                                 | how many tokens may be decoded, or a refusal              |
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, OutputFormat, Sampling, ToolSpec, Unseal
from schemas.errors import Invalid
from schemas.frames import PromptImage
from services.images.prompt_images import place_images
from services.ledger.encode import LedgerPrompt
from services.ledger.pairs import join_pairs
from services.ledger.recall import Recall
from services.preprocessor.encode import encode, encode_raw
from services.preprocessor.limit import check_sampling, limit_output
from services.preprocessor.model import ModelSetup
from services.preprocessor.render import (
    RenderedPrompt,
    allowed_tools,
    enforced_format,
    render,
    with_format_instruction,
)
from services.preprocessor.strip import strip_preamble
from services.templates.tools import PromptTools
from services.tokenization.model_files import with_defaults

_TOO_DEEP = "a tool's schema, a call's arguments or a template variable is nested too deeply"

LookUp: TypeAlias = Callable[[Conversation, list[ToolSpec]], Recall]
"""Looks up the turns of a stripped conversation, with its tools as the model sees them:
`Ledger.look_up`."""
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
    found: LedgerPrompt | None = None
    """The ledger's part, if there is a ledger."""
    images: list[PromptImage] = []


class PromptDraft(Struct, frozen=True):
    """A conversation on the way to its prompt: stripped, and its earlier turns looked up."""

    conversation: Conversation
    """As the client sent it."""
    stripped: Conversation
    tools: PromptTools
    recall: Recall | None
    """The earlier turns; None: there is no ledger, or the client sent a whole prompt."""

    @property
    def missing(self) -> Sequence[bytes]:
        """The ledger's keys of turns that memory may lack."""
        return () if self.recall is None else self.recall.missing


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
    draft = draft_prompt(conversation, setup, limit=limit, look_up=look_up, on_step=on_step)
    return finish_prompt(draft, setup, window=window, limit=limit, unseal=unseal, on_step=on_step)


def draft_prompt(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    limit: bool = True,
    look_up: LookUp | None = None,
    on_step: OnStep = no_step,
) -> PromptDraft:
    """The first steps of `assemble`: strips the conversation, and looks up its turns."""
    if limit:
        check_sampling(conversation.sampling, setup.tokenizer.vocab_size)
    if conversation.prompt is not None:
        return PromptDraft(conversation, conversation, PromptTools(), None)

    try:
        on_step("strip")
        tools = setup.tools_of(conversation.tools)
        stripped = _strip(conversation, setup)

        if look_up is None:
            return PromptDraft(conversation, stripped, tools, None)
        on_step("ledger")
        return PromptDraft(conversation, stripped, tools, look_up(stripped, tools.rendered))
    except RecursionError:
        raise Invalid(_TOO_DEEP) from None


def finish_prompt(
    draft: PromptDraft,
    setup: ModelSetup,
    *,
    window: int | None = None,
    limit: bool = True,
    unseal: Unseal | None = None,
    on_step: OnStep = no_step,
) -> Prompt:
    """The last steps of `assemble`: restores, renders, encodes, and limits the output."""
    conversation = draft.conversation
    tools = draft.tools
    try:
        rendered = _render(draft, setup, unseal, on_step)
        on_step("encode")
        ids, found = _encode(draft, setup, rendered)
    except RecursionError:
        raise Invalid(_TOO_DEEP) from None

    max_tokens = conversation.sampling.max_tokens or 0
    window_limited = False
    if limit:
        max_tokens, window_limited = limit_output(
            len(ids),
            conversation.sampling.max_tokens,
            setup.window(window),
            setup.card.max_output_tokens or None,
        )
        if draft.recall is not None and found is not None:
            draft.recall.keep(found)

    sampling = with_defaults(conversation.sampling, setup.sampling)
    return Prompt(
        ids=ids,
        text=setup.encoder.plain(rendered.text),
        in_reasoning=rendered.in_reasoning,
        prefix=rendered.prefix,
        tools=tools.rendered,
        parser_tools=tools.parser_json,
        allowed_tools=rendered.allowed_tools,
        enforced_format=rendered.enforced_format,
        max_tokens=max_tokens,
        window_limited=window_limited,
        stop_ids=_stop_ids(conversation.sampling, setup),
        sampling=replace(sampling, max_tokens=max_tokens),
        found=found,
        images=place_images(ids, rendered.images),
    )


def _strip(conversation: Conversation, setup: ModelSetup) -> Conversation:
    """The conversation that the model is to see."""
    if setup.strip_preamble:
        conversation = strip_preamble(conversation)
    conversation = with_format_instruction(conversation)
    return replace(conversation, messages=join_pairs(conversation.messages))


def _render(
    draft: PromptDraft, setup: ModelSetup, unseal: Unseal | None, on_step: OnStep
) -> RenderedPrompt:
    raw = draft.conversation.prompt
    if raw is not None:
        return RenderedPrompt(
            text=raw.text or "",
            allowed_tools=allowed_tools(draft.conversation),
            enforced_format=enforced_format(draft.conversation),
        )
    stripped = draft.stripped if draft.recall is None else draft.recall.restore()
    on_step("render")
    return render(stripped, setup, draft.tools, unseal)


def _encode(
    draft: PromptDraft, setup: ModelSetup, rendered: RenderedPrompt
) -> tuple[Sequence[int], LedgerPrompt | None]:
    raw = draft.conversation.prompt
    if raw is not None:
        return encode_raw(raw, setup.tokenizer), None
    return encode(rendered, setup.encoder, draft.recall)


def _stop_ids(sampling: Sampling, setup: ModelSetup) -> list[int]:
    """The ids that end a turn, the client's among them, each once."""
    ids = list(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ids = [*setup.stop_ids, *ids]
    return list(dict.fromkeys(ids))
