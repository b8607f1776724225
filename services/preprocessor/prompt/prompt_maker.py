"""Makes the prompt of a conversation in four steps. CPU-bound; pure, but for a cache of tools.

| half     | step    | file                               | result                                 |
|----------|---------|------------------------------------|----------------------------------------|
| `start`  | strip   | `strip.py`                         | the conversation that the model sees   |
|          | restore | `services/ledger/lookup/`          | its earlier turns as the model wrote   |
|          |         |                                    | them                                   |
| `finish` | render  | `render.py`                        | `RenderedPrompt`: the template's text  |
|          | encode  | `services/ledger/prompt/encode.py` | `EncodedPrompt`: ids, original ones of |
|          |         |                                    | turns and others of the text           |

Between the halves the server fetches turns that the ledger lacks (`Preparation.make_prompt`). All
others call `make`, which runs both. A prompt of `/v1/completions` only has the last step
(`raw_prompt.py`). How many tokens may be decoded after a prompt is found in `output_settings.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

from msgspec import Struct

from schemas.conversation import Conversation, ToolSpec, Unseal, opens_nothing
from schemas.errors import Invalid
from schemas.events import PromptImage
from services.images.prompt_images import place_images
from services.ledger.lookup.match import MatchedHistory, unmatched
from services.ledger.prompt.encode import EncodedPrompt
from services.ledger.turn_ledger import Ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_tools import PromptToolCache
from services.preprocessor.prompt.raw_prompt import encode_raw, render_raw
from services.preprocessor.prompt.render import RenderedPrompt, render
from services.preprocessor.prompt.strip import strip
from services.templates.tools import PromptTools
from services.tokenization.segments import TokenIds

OnStep: TypeAlias = Callable[[Literal["strip", "restore", "render", "encode"]], None]
"""Called at the start of each step, with its name; not for restore without a ledger."""

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


class StartedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt after its first half, with what the second one needs."""

    history: MatchedHistory
    """The conversation and its turns in the ledger."""
    tools: PromptTools = PromptTools()
    unseal: Unseal
    on_step: OnStep

    @property
    def missing(self) -> Sequence[bytes]:
        """Keys of turns that the ledger may lack. If some are added, the prompt is started
        again."""
        return self.history.missing


@contextmanager
def _deep_nesting_is_invalid() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise Invalid(_TOO_DEEP) from None


class PromptMaker:
    """Makes the prompts of one model. For any thread; each half may run again."""

    def __init__(self, setup: ModelSetup, ledger: Ledger) -> None:
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
        return self.finish(self.start(conversation, unseal, on_step))

    @_deep_nesting_is_invalid()
    def start(
        self, conversation: Conversation, unseal: Unseal, on_step: OnStep = no_step
    ) -> StartedPrompt:
        """The first half: the conversation's tools, and its turns in the ledger. Raises as
        `make`."""
        if conversation.prompt is not None:
            return StartedPrompt(history=unmatched(conversation), unseal=unseal, on_step=on_step)

        on_step("strip")
        tools = self._tools.get(conversation.tools)
        stripped = strip(conversation, preamble=self._setup.strip_preamble)

        if self._ledger.has_turns:
            on_step("restore")
        history = self._ledger.look_up(stripped, tools.specs, unseal)
        return StartedPrompt(history=history, tools=tools, unseal=unseal, on_step=on_step)

    @_deep_nesting_is_invalid()
    def finish(self, started: StartedPrompt) -> Prompt:
        """The second half: the prompt. Raises as `make`."""
        history, tools, on_step = started.history, started.tools, started.on_step
        raw_prompt = history.conversation.prompt
        if raw_prompt is not None:
            on_step("encode")
            rendered = render_raw(history.conversation, raw_prompt)
            encoded = encode_raw(raw_prompt, self._setup.tokenizer)
            return Prompt(rendered=rendered, encoded=encoded)

        on_step("render")
        rendered = render(history.restored(), self._setup, tools, started.unseal)

        on_step("encode")
        encoded = self._ledger.encode(
            history,
            tools.specs,
            rendered.marked_text,
            rendered.prefix,
            continues=rendered.continues,
        )
        images = place_images(encoded.ids, rendered.images)
        return Prompt(rendered=rendered, encoded=encoded, images=images)
