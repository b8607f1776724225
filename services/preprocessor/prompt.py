"""Makes the prompt of a conversation in five steps: strip, restore, render, encode, limit. Pure and
CPU-bound.

| step    | file                                | result                                    |
|---------|-------------------------------------|-------------------------------------------|
| strip   | `strip.py`                          | the conversation that the model is to see |
| restore | `services/ledger/lookup/restore.py`        | its earlier turns as the model wrote them |
| render  | `render.py`                         | the text, by the chat template, whole     |
| encode  | `services/ledger/prompt/encode.py`         | ids: original ones of turns, others of    |
|         |                                     | the text                                  |
| limit   | `limit.py`                          | how many tokens may be decoded            |

A prompt of `/v1/completions` only has the steps encode (`raw_prompt.py`) and limit.

The steps may run on any thread, and again from the first: after turns were fetched that only the
ledger's bucket had (`UnfetchedTurns`), when a text is too long for the event loop, and when the
template is too slow for it (`threads.py`).

Restore and encode share a `Recall`, which looks up the conversation's turns in the ledger once.
Render makes a `RenderedPrompt` and encode an `EncodedPrompt`: together they are a `Prompt`. Limit
makes it a `LimitedPrompt`.
"""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, Sampling, ToolSpec, Unseal, opens_nothing
from schemas.errors import Invalid
from schemas.events import PromptImage
from services.images.prompt_images import place_images
from services.ledger.prompt.encode import EncodedPrompt
from services.ledger.recall import NO_LEDGER, Ledger
from services.preprocessor.limit import check_sampling, limit_output
from services.preprocessor.model import ModelSetup
from services.preprocessor.raw_prompt import encode_raw, render_raw
from services.preprocessor.render import RenderedPrompt, render
from services.preprocessor.strip import strip
from services.runtime.config.stages import PreprocessorConfig
from services.tokenization.model_files import with_defaults
from services.tokenization.segments import TokenIds

OnStep: TypeAlias = Callable[[str], None]
"""Called at the start of the steps `strip`, `ledger` (restore, if there is a ledger), `render` and
`encode` of a prompt, with this name. The step limit is not reported; a raw prompt only has
`encode`."""

_TOO_DEEP = "a tool's schema, a call's arguments or a template variable is nested too deeply"


def no_step(name: str) -> None:
    """An `OnStep` that does nothing."""


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt as text and as ids: the results of its steps."""

    rendered: RenderedPrompt
    encoded: EncodedPrompt
    """The ids, and what the ledger has to do with them."""
    text: str
    """The rendered text without marks; "": a prompt that was sent as ids."""
    images: list[PromptImage] = []

    @property
    def ids(self) -> TokenIds:
        """The token ids."""
        return self.encoded.ids

    @property
    def tools(self) -> list[ToolSpec]:
        """The tools, deferred ones included, under the names and with the schemas that the model
        sees."""
        return self.rendered.tools.rendered


class LimitedPrompt(Prompt, frozen=True, kw_only=True):
    """The prompt of a turn, with the settings of its output."""

    max_tokens: int
    window_limited: bool
    """Reaching `max_tokens` means that the context window is full."""
    stop_ids: list[int]
    sampling: Sampling
    """The client's settings, with the model's defaults for the others, and `max_tokens` set."""


def assemble(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    window: int | None = None,
    unseal: Unseal = opens_nothing,
    ledger: Ledger = NO_LEDGER,
    on_step: OnStep = no_step,
) -> LimitedPrompt:
    """The prompt of a turn, which the ledger keeps for the turn that follows.

    `window`: the workers' context window in tokens, if known. The others are those of
    `encode_prompt`.

    Raises as `encode_prompt`, Invalid for stop strings or ids that cannot be served, too, and
    ContextOverflow where prompt and answer do not fit.
    """
    check_sampling(conversation.sampling, setup.tokenizer.vocab_size)
    prompt = encode_prompt(conversation, setup, unseal=unseal, ledger=ledger, on_step=on_step)
    limited = _limited(prompt, conversation.sampling, setup, window)
    ledger.keep(prompt.encoded)
    return limited


def encode_prompt(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    unseal: Unseal = opens_nothing,
    ledger: Ledger = NO_LEDGER,
    on_step: OnStep = no_step,
) -> Prompt:
    """The prompt of a conversation, to count, show or prefill it.

    `unseal` opens sealed reasoning. `ledger` has earlier turns; its exceptions propagate.

    Raises Invalid where the conversation, a tool choice or a template variable cannot be served.
    """
    if conversation.prompt is not None:
        on_step("encode")
        rendered = render_raw(conversation, conversation.prompt)
        return _prompt(rendered, encode_raw(conversation.prompt, setup.tokenizer), setup)

    try:
        on_step("strip")
        tools = setup.tools_of(conversation.tools)
        stripped = strip(conversation, preamble=setup.strip_preamble)

        if ledger.has_turns:
            on_step("ledger")
        recall = ledger.recall(stripped, tools.rendered, setup.encoder, unseal)
        restored = recall.restore()

        on_step("render")
        rendered = render(restored, setup, tools, unseal)

        on_step("encode")
        encoded = recall.encode(rendered.text, rendered.prefix, continues=rendered.continues)
    except RecursionError:
        raise Invalid(_TOO_DEEP) from None
    return _prompt(rendered, encoded, setup)


def prompt_ids(model: str, conversation: Conversation) -> list[int]:
    """The token ids of a conversation's prompt, as the preprocessor sends them to a worker. For use
    as a library, without any service.

    `model` is a directory (or hub id) with the model's configuration, tokenizer and chat template;
    weights are not needed. Each call loads these files, in a second or two. For more prompts load
    them once:

        setup = ModelSetup.load(PreprocessorConfig(model=model))
        prompt = assemble(conversation, setup)

    The `LimitedPrompt` also has the text, the tools as the model sees them, and the stop ids.

    Raises OSError or ValueError where the model cannot be loaded, Invalid where the template
    refuses the conversation, ContextOverflow where it does not fit the model's context window.
    """
    return list(assemble(conversation, ModelSetup.load(PreprocessorConfig(model=model))).ids)


def _prompt(rendered: RenderedPrompt, encoded: EncodedPrompt, setup: ModelSetup) -> Prompt:
    """The prompt with these results of its steps."""
    return Prompt(
        rendered=rendered,
        encoded=encoded,
        text=setup.encoder.plain(rendered.text),
        images=place_images(encoded.ids, rendered.images),
    )


def _limited(
    prompt: Prompt, of_client: Sampling, setup: ModelSetup, window: int | None
) -> LimitedPrompt:
    """The prompt with the settings of its output. Raises ContextOverflow."""
    limit = limit_output(
        len(prompt.ids),
        of_client.max_tokens,
        setup.effective_window(window),
        setup.card.max_output_tokens or None,
    )
    sampling = with_defaults(of_client, setup.sampling)
    return LimitedPrompt(
        rendered=prompt.rendered,
        encoded=prompt.encoded,
        text=prompt.text,
        images=prompt.images,
        max_tokens=limit.max_tokens,
        window_limited=limit.window_limited,
        stop_ids=_stop_ids(of_client, setup),
        sampling=replace(sampling, max_tokens=limit.max_tokens),
    )


def _stop_ids(sampling: Sampling, setup: ModelSetup) -> list[int]:
    """The ids that end a turn, the client's among them, each once."""
    ids = list(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ids = [*setup.stop_ids, *ids]
    return list(dict.fromkeys(ids))
