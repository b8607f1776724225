"""A turn that has ended, as samples need it. Pure."""

from array import array
from collections.abc import Sequence
from itertools import chain, takewhile

from msgspec import Struct, json
from xxhash import xxh3_64_digest

from schemas.conversation import Call, Client, Conversation, Part, Text
from schemas.events import BlockKind, FinishReason, PromptImage, WeightsSpan
from services.ledger.turns.chain import answers_in, content_of
from services.templates.messages import is_answer


class SampleBlock(Struct, omit_defaults=True):
    """The tokens of a block's text; of a call, of its arguments. Those between two blocks are
    markup: what closes the first one and opens the second, with the name of a call. A block without
    tokens of its own has `start` = `end`."""

    kind: BlockKind
    start: int
    end: int
    name: str | None = None
    """Name of a tool call, as the model wrote it."""
    call_id: str | None = None
    """The id of a tool call, as the client received it."""


class SampledTurn(Struct, kw_only=True):
    """One turn with all its tokens."""

    id: str
    time: float
    """Unix time of the request."""
    ended: float
    """Unix time of its last event."""
    model: str
    client: Client
    prompt: "array[int]"
    output: "array[int]"
    """The ids that the last event counts: up to a cut, and with the end token if the engine reports
    one."""
    reason: FinishReason
    """Why decoding ended."""
    stop_id: int | None = None
    """The end token, which is then the last of `output`."""
    logprobs: list[float | None] = []
    """One for each output token; empty where none were recorded."""
    blocks: list[SampleBlock] | None = None
    """Offsets count output tokens; None: they are not known."""
    written: list[Text | Call] = []
    """The text and calls, as the client received them."""
    opening: str = ""
    """The turn opening at the prompt's end, as in `LedgerContext`."""
    answers: list[bytes] = []
    """`digest_of` each answer of the model in the request's history, oldest first."""
    question: list[str] = []
    """The texts of the user's messages before the first answer."""
    images: list[PromptImage] = []
    weights: list[WeightsSpan] = []
    """The versions of the weights that decoded the output; empty: version 0."""
    experts: str = ""
    """The name of the file with the experts that its tokens were routed to; "": none."""


def digest_of(answer: Sequence[Part]) -> bytes:
    """Eight bytes that are equal for equal text and calls, in whatever form a client sends them
    back."""
    return xxh3_64_digest(json.encode(content_of(answer)))


def answer_digests(conversation: Conversation) -> list[bytes]:
    """`SampledTurn.answers` of a turn with this request."""
    return [digest_of(answer) for answer in answers_in(conversation.messages)]


def question_of(conversation: Conversation) -> list[str]:
    """`SampledTurn.question` of a turn with this request."""
    before = takewhile(lambda message: not is_answer(message), conversation.messages)
    texts = (message.parts for message in before if message.role == "user")
    return [part.text for part in chain.from_iterable(texts) if isinstance(part, Text)]
