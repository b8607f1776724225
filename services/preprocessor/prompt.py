"""Makes the prompt of a conversation in four steps. CPU-bound; pure, but for a cache of tools.

| step    | file                               | result                                           |
|---------|------------------------------------|--------------------------------------------------|
| strip   | `strip.py`                         | the conversation that the model is to see        |
| restore | `services/ledger/lookup/`          | its earlier turns as the model wrote them        |
| render  | `render.py`                        | `RenderedPrompt`: the text, by the chat template |
| encode  | `services/ledger/prompt/encode.py` | `EncodedPrompt`: ids, original ones of turns and |
|         |                                    | others of the text                               |

A prompt of `/v1/completions` only has the last step (`raw_prompt.py`). How many tokens may be
decoded after a prompt is found in `output_settings.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from msgspec import Struct

from schemas.conversation import Conversation, ToolSpec, Unseal, opens_nothing
from schemas.errors import Invalid
from schemas.events import PromptImage
from services.images.prompt_images import place_images
from services.ledger.lookup.match import MatchedHistory
from services.ledger.prompt.encode import EncodedPrompt
from services.ledger.turn_ledger import NO_LEDGER, Ledger
from services.preprocessor.model import ModelSetup
from services.preprocessor.output_settings import check_sampling, output_settings
from services.preprocessor.prompt_tools import PromptToolCache
from services.preprocessor.raw_prompt import encode_raw, render_raw
from services.preprocessor.render import RenderedPrompt, render
from services.preprocessor.strip import strip
from services.runtime.config.stages import PreprocessorConfig
from services.templates.tools import PromptTools
from services.tokenization.segments import TokenIds

OnStep: TypeAlias = Callable[[str], None]
"""Called at the start of the steps `strip`, `ledger` (restore, if there is a ledger), `render` and
`encode`, with this name."""

_TOO_DEEP = "a tool's schema, a call's arguments or a template variable is nested too deeply"


def no_step(name: str) -> None:
    """An `OnStep` that does nothing."""


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt as text and as ids: the results of its steps."""

    rendered: RenderedPrompt
    encoded: EncodedPrompt
    """The ids, and what the ledger has to do with them."""
    images: list[PromptImage] = []

    @property
    def text(self) -> str:
        """The text without marks; "": a prompt that was sent as ids."""
        return self.rendered.plain_text

    @property
    def ids(self) -> TokenIds:
        """The token ids."""
        return self.encoded.ids

    @property
    def tools(self) -> list[ToolSpec]:
        """The tools, deferred ones included, under the names and with the schemas that the model
        sees."""
        return self.rendered.tools.specs


class PromptMaker:
    """Makes the prompts of one model. For any thread.

    The steps of a prompt are in two halves. Between them the caller may fetch turns that the ledger
    lacks, and then look up again.
    """

    def __init__(self, setup: ModelSetup, ledger: Ledger = NO_LEDGER) -> None:
        self._setup = setup
        self._ledger = ledger
        self._tools = PromptToolCache(setup)

    def make(
        self,
        conversation: Conversation,
        unseal: Unseal = opens_nothing,
        on_step: OnStep = no_step,
    ) -> Prompt:
        """The prompt of a conversation, with the turns that the ledger has now. `unseal` opens
        sealed reasoning.

        Raises Invalid where the conversation, a tool choice or a template variable cannot be
        served.
        """
        if conversation.prompt is not None:
            on_step("encode")
            rendered = render_raw(conversation, conversation.prompt)
            return _prompt(rendered, encode_raw(conversation.prompt, self._setup.tokenizer))

        tools, history = self.look_up(conversation, unseal, on_step)
        return self.finish(tools, history, unseal, on_step)

    def look_up(
        self, conversation: Conversation, unseal: Unseal, on_step: OnStep = no_step
    ) -> tuple[PromptTools, MatchedHistory]:
        """The first half: a conversation's tools, and its turns in the ledger. Raises as `make`."""
        with _deep_nesting_is_invalid():
            on_step("strip")
            tools = self._tools.get(conversation.tools)
            stripped = strip(conversation, preamble=self._setup.strip_preamble)

            if self._ledger.has_turns:
                on_step("ledger")
            return tools, self._ledger.look_up(stripped, tools.specs, unseal)

    def finish(
        self,
        tools: PromptTools,
        history: MatchedHistory,
        unseal: Unseal,
        on_step: OnStep = no_step,
    ) -> Prompt:
        """The second half: the prompt, with the results of `look_up`. Raises as `make`."""
        with _deep_nesting_is_invalid():
            on_step("render")
            rendered = render(history.restored(), self._setup, tools, unseal)

            on_step("encode")
            encoded = self._ledger.encode(
                history,
                tools.specs,
                self._setup.encoder,
                rendered.text,
                rendered.prefix,
                continues=rendered.continues,
            )
            return _prompt(rendered, encoded)


def assemble(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    unseal: Unseal = opens_nothing,
    ledger: Ledger = NO_LEDGER,
) -> Prompt:
    """The prompt of a conversation, for use as a library. Who makes many keeps a `PromptMaker`,
    which caches their tools. Raises as `PromptMaker.make`."""
    return PromptMaker(setup, ledger).make(conversation, unseal)


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


@contextmanager
def _deep_nesting_is_invalid() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise Invalid(_TOO_DEEP) from None


def _prompt(rendered: RenderedPrompt, encoded: EncodedPrompt) -> Prompt:
    """The prompt with these results of its steps."""
    images = place_images(encoded.ids, rendered.images)
    return Prompt(rendered=rendered, encoded=encoded, images=images)
