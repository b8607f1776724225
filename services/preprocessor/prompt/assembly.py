"""Makes a prompt of a conversation in four stages: strip, render, encode, check. Pure and CPU-bound.

| stage  | module                                | result                                               |
|--------|---------------------------------------|------------------------------------------------------|
| strip  | `preamble`, `constraints`             | the conversation that the model is to see            |
| render | `rendering`                           | the text, by the chat template                       |
| encode | the ledger, or `tokenization.encoder` | the token ids                                        |
| check  | `limits`                              | how many tokens may be decoded, or a refusal         |

The ledger takes part twice: before rendering it restores turns as the model wrote them, and in the third stage it
returns their original tokens, so that only other text is encoded.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, RawPrompt, Sampling, ToolSpec
from schemas.errors import Invalid
from schemas.frames import unpack_ids
from services.ledger.recall import Recall, RecalledPrompt
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt.constraints import with_format_instruction
from services.preprocessor.prompt.history import Keep
from services.preprocessor.prompt.limits import OutputLimit, check_sampling, limit_output
from services.preprocessor.prompt.preamble import strip_preamble
from services.preprocessor.prompt.rendering import RenderedPrompt, render
from services.templates.messages import Unseal
from services.templates.tools import SessionTools
from services.tokenization.model_files import with_defaults
from services.tokenization.prompt_tokenizer import PromptTokenizer

_TOO_DEEP = "a tool's schema, a call's arguments or a template variable is nested too deeply"


class Prompt(Struct, frozen=True, kw_only=True):
    """What a worker and a parser shard need of a prompt."""

    ids: Sequence[int]
    """An array, which `pack_ids` packs as it is, where the ids come from the encoder."""
    text: str
    """"": a prompt given as ids."""
    in_reasoning: bool
    """The prompt ends inside an open reasoning block."""
    prefix: str
    """The end of the prompt that opens a forced call, and so belongs to the model's turn."""
    tools: list[ToolSpec]
    """The tools under the names and with the schemas that the model sees, deferred ones included."""
    parser_tools: bytes = b"[]"
    """The same as JSON, at least with what parsers need."""
    max_tokens: int
    window_limited: bool
    """Reaching `max_tokens` means that the context window is full."""
    stop_ids: list[int]
    sampling: Sampling
    """The client's, with the model's defaults for what it left open, and `max_tokens` set."""
    stripped_lines: int
    """Billing header lines that were removed."""
    found: RecalledPrompt | None = None
    """The ledger's part, if there is a ledger."""
    keep: Callable[[], None] | None = None
    """Keeps what the session's next prompts share with this one; to be called when nothing waits for the prompt."""


Remember: TypeAlias = Callable[[Conversation, list[ToolSpec]], Recall]
"""Looks up a conversation without preamble, and its tools as the model sees them: `Ledger.recall`."""
OnStep: TypeAlias = Callable[[str], None]
"""Called at the beginning of each step with its name: `strip`, `ledger`, `render`, `encode`."""


def no_step(name: str) -> None:
    """The `OnStep` of prompts whose steps are of no interest."""


def assemble(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    window: int | None = None,
    limit: bool = True,
    unseal: Unseal | None = None,
    remember: Remember | None = None,
) -> Prompt:
    """The prompt of a conversation, kept for the next ones. For the arguments and exceptions see `PromptDraft`;
    `remember` looks up earlier turns."""
    draft = PromptDraft(conversation, setup, window=window, limit=limit, unseal=unseal)
    if remember is not None:
        draft.recall(remember)
    prompt = draft.prompt()
    if prompt.keep is not None:
        prompt.keep()
    return prompt


class PromptDraft:
    """A prompt in the making. Each step may be repeated, in any thread."""

    def __init__(
        self,
        conversation: Conversation,
        setup: ModelSetup,
        *,
        window: int | None = None,
        limit: bool = True,
        unseal: Unseal | None = None,
        on_step: OnStep = no_step,
    ) -> None:
        """`window`: the workers' context window in tokens, if known. `limit` False skips the checks, to count or show a
        prompt, which the ledger then does not keep. `unseal` opens sealed reasoning.

        Raises Invalid for stop strings and ids that cannot be served.
        """
        if limit:
            check_sampling(conversation.sampling, setup.tokenizer.vocab_size)
        self._conversation = conversation
        self._setup = setup
        self._window = window
        self._limit = limit
        self._unseal = unseal
        self._on_step = on_step
        self._tools = SessionTools.of(conversation.tools)
        self._stripped_lines = 0
        self._recall: Recall | None = None

    def recall(self, remember: Remember) -> list[bytes]:
        """Looks up earlier turns. Returns the keys of turns of which memory may lack the entry. Raises Invalid as
        `prompt`."""
        if self._conversation.prompt is not None:
            return []
        try:
            stripped = self._strip()
            self._on_step("ledger")
            self._recall = remember(stripped, self._tools.rendered)
        except RecursionError:
            raise Invalid(_TOO_DEEP) from None
        return self._recall.missing

    def prompt(self) -> Prompt:
        """Renders, encodes and checks.

        Raises Invalid where the conversation, a tool choice or a template variable cannot be served, ContextOverflow
        where prompt and answer do not fit.
        """
        conversation, setup, recall = self._conversation, self._setup, self._recall
        tools, found = self._tools, None
        ids: Sequence[int]
        try:
            if (raw := conversation.prompt) is not None:
                tools, rendered = SessionTools(), RenderedPrompt(text=raw.text or "")
                self._on_step("encode")
                ids = encode_raw(raw, setup.tokenizer)
            else:
                stripped = recall.restore() if recall is not None else self._strip()
                self._on_step("render")
                rendered = render(stripped, setup, self._unseal)
                self._on_step("encode")
                if recall is not None:
                    found = recall.encode(rendered.text, rendered.prefix, rendered.stable, continues=rendered.continues)
                    ids = found.ids
                else:
                    ids = setup.encoder.encode(rendered.text, rendered.stable)
            parser_tools = tools.parser_json
        except RecursionError:
            raise Invalid(_TOO_DEEP) from None
        requested = conversation.sampling.max_tokens
        output = OutputLimit(requested or 0, False)
        if self._limit:
            output = limit_output(len(ids), requested, setup.window(self._window), setup.card.max_output_tokens or None)
            if recall is not None and found is not None:
                recall.keep(found)
        return Prompt(
            ids=ids,
            text=setup.encoder.plain(rendered.text),
            in_reasoning=rendered.in_reasoning,
            prefix=rendered.prefix,
            tools=tools.rendered,
            parser_tools=parser_tools,
            max_tokens=output.max_tokens,
            window_limited=output.window_limited,
            stop_ids=_stop_ids(conversation.sampling, setup),
            sampling=replace(with_defaults(conversation.sampling, setup.sampling), max_tokens=output.max_tokens),
            stripped_lines=self._stripped_lines,
            found=found,
            keep=partial(_keep, rendered.keep, setup) if rendered.keep is not None else None,
        )

    def _strip(self) -> Conversation:
        self._on_step("strip")
        conversation = replace(self._conversation, tools=self._tools)
        stripped, self._stripped_lines = strip(conversation, self._setup)
        return stripped


def _keep(keep: Keep, setup: ModelSetup) -> None:
    if (stable := keep()) is not None:
        setup.encoder.prepare(stable)


def strip(conversation: Conversation, setup: ModelSetup) -> tuple[Conversation, int]:
    """The conversation that the model is to see: without billing header lines, of which the number is returned, and
    with an instruction for its output format."""
    stripped, lines = strip_preamble(conversation) if setup.strip_preamble else (conversation, 0)
    return with_format_instruction(stripped), lines


def encode_raw(prompt: RawPrompt, tokenizer: PromptTokenizer) -> list[int]:
    """The ids of a prompt of `/v1/completions`, text or ids, which goes to the model unchanged.

    Raises Invalid for an empty prompt, for bytes that are no ids and for ids outside the vocabulary.
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


def _stop_ids(sampling: Sampling, setup: ModelSetup) -> list[int]:
    own = () if sampling.ignore_eos else setup.stop_ids
    return list(dict.fromkeys((*own, *sampling.stop_token_ids)))
