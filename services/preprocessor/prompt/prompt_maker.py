"""Makes the prompt of a conversation in four steps. CPU-bound; pure, but for the ledger, which gets
turns at any time, and a cache of tools.

| half     | step      | file                               | result                               |
|----------|-----------|------------------------------------|--------------------------------------|
| `start`  | normalize | `normalize.py`                     | the conversation that the model sees |
|          | restore   | `services/ledger/lookup/`          | `MatchedHistory`: its earlier turns  |
|          |           |                                    | as the model wrote them              |
| `finish` | render    | `render.py`                        | `RenderedPrompt`: the template's     |
|          |           |                                    | text                                 |
|          | encode    | `services/ledger/prompt/encode.py` | `EncodedPrompt`: ids, original ones  |
|          |           |                                    | of turns and others of the text      |

Between the halves the server fetches turns that the ledger lacks (`Preparation.make_prompt`). All
others call `make`, which runs both. Prompts of `/v1/completions`, which are text or ids already,
are made in `raw_prompt.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from msgspec import Struct

from schemas.conversation import Conversation, ToolSpec, Unseal, opens_nothing
from schemas.errors import Invalid
from schemas.events import PromptImage
from services.ledger.lookup.match import MatchedHistory
from services.ledger.prompt.prompts import EncodedPrompt, RenderedPrompt
from services.ledger.turn_ledger import Ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.normalize import normalize
from services.preprocessor.prompt.prompt_images import place_images
from services.preprocessor.prompt.prompt_tools import PromptToolCache
from services.preprocessor.prompt.render import render
from services.templates.tools import PromptTools
from services.tokenization.segments import TokenIds

OnStep: TypeAlias = Callable[[Literal["normalize", "restore", "render", "encode"]], None]
"""Called at the start of each step, with its name; not for restore without a ledger."""


def no_step(name: str) -> None:
    """An `OnStep` that does nothing."""


class StartedPrompt(Struct, frozen=True):
    """The result of the first half, and what both halves use."""

    history: MatchedHistory
    tools: PromptTools
    unseal: Unseal
    on_step: OnStep


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


@contextmanager
def _deep_nesting_is_invalid() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise Invalid(
            "a tool's schema, a call's arguments or a template variable is nested too deeply"
        ) from None


class PromptMaker:
    """Makes the prompts of one model. For any thread. Each half may run again, so it neither counts
    nor logs, and changes nothing but caches."""

    def __init__(self, setup: ModelSetup, ledger: Ledger) -> None:
        self._setup = setup
        self._ledger = ledger
        self._tools = PromptToolCache(setup)

    def make(self, conversation: Conversation, unseal: Unseal = opens_nothing) -> Prompt:
        """The prompt of a conversation, with the turns that the ledger has now. `unseal` opens
        sealed reasoning.

        Raises Invalid where the conversation, a tool choice or a template variable cannot be
        served.
        """
        return self.finish(self.start(conversation, unseal))

    @_deep_nesting_is_invalid()
    def start(
        self, conversation: Conversation, unseal: Unseal, on_step: OnStep = no_step
    ) -> StartedPrompt:
        """The first half: the conversation that the model sees, and its turns in the ledger. Raises
        as `make`."""
        on_step("normalize")
        tools = self._tools.get(conversation.tools)
        normalized = normalize(conversation, preamble=self._setup.strip_preamble)

        if self._ledger.has_turns:
            on_step("restore")
        history = self._ledger.look_up(normalized, tools.specs, unseal)
        return StartedPrompt(history, tools, unseal, on_step)

    @_deep_nesting_is_invalid()
    def finish(self, started: StartedPrompt) -> Prompt:
        """The second half: the prompt. Raises as `make`."""
        started.on_step("render")
        rendered = render(started.history.restored(), self._setup, started.tools, started.unseal)

        started.on_step("encode")
        encoded = self._ledger.encode(started.history, rendered)
        images = place_images(encoded.ids, rendered.images)
        return Prompt(rendered=rendered, encoded=encoded, images=images)
