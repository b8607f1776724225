"""Requests on their way in: a turn to a preprocessor, a prompt to a worker, and their replies.

Messages are JSON, so that `nats sub 'tw.v2.>'` shows a turn as it flows. One message is JSON only
in part: a request to a worker, which has a whole prompt, carries its token ids after its JSON and
a zero byte (`encode_generate`).
"""

from typing import Literal

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import asdict

from schemas.conversation import Conversation, Sampling, ToolSpec
from schemas.errors import ErrorInfo
from schemas.events import BrokenCall, PromptComparison, PromptImage
from schemas.ledger import LedgerContext

ABSENT = Raw(b"null")
"""The default of an optional `Raw` field (msgspec has no union with Raw)."""


class TurnRequest(Struct, frozen=True, omit_defaults=True):
    """frontend → preprocessor: prepare and decode this turn. The newest `attempt` supersedes
    earlier ones."""

    turn: str
    frontend: str
    conversation: Conversation
    attempt: int = 1
    timeout_s: float | None = None
    """Seconds after which the answer is useless. Each receiver counts them by its own clock, from
    the arrival of the message."""
    resume: bytes = b""
    """Output tokens of an earlier attempt (`pack_ids`); decoding continues after them."""
    avoid: list[str] = []
    """Workers that failed this turn."""
    broken_call: BrokenCall | None = None
    """The call that an earlier attempt wrote after `resume`. Decoding goes on with a small change
    of sampling, and `tokens` less may be decoded."""
    trace: dict[str, str] = {}
    """W3C trace context, if the turn is traced: `traceparent`, and `tracestate` if there is one."""
    held_s: float = 0.0
    """Seconds for which earlier attempts were prepared or held."""
    time: float = 0.0
    """When it was sent, for observers of the bus: Unix time in seconds; 0: unknown."""


class Accepted(Struct, frozen=True):
    """The immediate reply to a `TurnRequest`: the preprocessor accepts it. `Failed` follows from
    the preprocessor if no worker accepts the turn, else `Prepared` from the parser."""

    preprocessor: str


class CountRequest(Struct, frozen=True):
    """frontend → preprocessor: count the tokens of this conversation's prompt."""

    conversation: Conversation


class TokenizeRequest(Struct, frozen=True, omit_defaults=True):
    """frontend → preprocessor: return the ids of `text`, or of the prompt of `conversation`."""

    text: str | None = None
    conversation: Conversation | None = None
    add_special_tokens: bool = False


class DetokenizeRequest(Struct, frozen=True):
    """frontend → preprocessor: return the text of these ids (`pack_ids`)."""

    token_ids: bytes


class TextReply(Struct, frozen=True, omit_defaults=True):
    """The reply to count, tokenize and detokenize: either `error` or the rest."""

    count: int = 0
    token_ids: bytes = b""
    text: str | None = None
    max_model_len: int | None = None
    error: ErrorInfo | None = None


class ParseContext(Struct, frozen=True, omit_defaults=True):
    """Everything that a parser shard needs to parse a stream from its first token."""

    model: str
    family: str
    frontend: str
    prompt_tokens: int
    max_tokens: int = 0
    """Limit of output tokens, for the turn's `Prepared`."""
    tools: list[ToolSpec] = []
    in_reasoning: bool = False
    """The prompt ends inside an open reasoning block."""
    prefix: str = ""
    """Text at the prompt's end that belongs to this turn (a forced call's opening): parsed before
    the first token."""
    stop: list[str] = []
    """Stop strings of the client; searched in text blocks."""
    include_stop: bool = False
    """Keep the stop string at the end of the text."""
    calls: Literal["parallel", "single", "none"] = "parallel"
    """`single`: end the turn after its first complete call; `none`: a call's markup is text."""
    allowed: list[str] = []
    """The only tools that may be called, by the names that the model sees; calls of others are
    text. Empty: all."""
    check_calls: Literal["", "syntax", "schema"] = ""
    """The check that a call must pass to be sent: its family's syntax, or also the required members
    and types of its tool's schema. Calls are sent whole, and one that is broken is decoded again
    from its opener, once. "": calls are sent as they are written."""
    broken_call: BrokenCall | None = None
    """The broken call that this attempt decodes again. If set, no further one is."""
    logprobs: int | None = None
    """Number of alternatives in each `TokenLogprob`; None: no log probabilities."""
    prompt_ids: bytes = b""
    """The prompt (`pack_ids`), for the turn's `Prepared`, if the request asked for ids; every
    output token is then reported too. Empty: no ids."""
    count_thoughts: bool = False
    """`BlockStop` of a thought has its tokens."""
    window_limited: bool = False
    """`max_tokens` is what the context window leaves, so reaching it means that the window is
    full."""
    tenant: str | None = None
    """Name of the API key, to which seals are bound."""
    ledger: LedgerContext | None = None
    """Context for the turn's ledger entry; None: no entry."""
    comparison: PromptComparison | None = None
    """How the prompt departs from an earlier one, for the turn's `Prepared`."""
    images: list[PromptImage] = []
    """With `prompt_ids`: the images in the prompt, in order."""
    trace: dict[str, str] = {}
    """W3C trace context, as in `TurnRequest`."""


FENCE = "```"
"""Begins and ends code, in which nothing opens a thought; one of `ThoughtSpelling.token_texts`."""


class ThoughtSpelling(Struct, frozen=True):
    """The markers of a model's reasoning, in a form that needs no tokenizer: a text has a character
    for each byte (Latin-1), because tokens may split characters."""

    token_texts: dict[str, bytes] = field(name="spelling")
    """The text that matters in a token → the tokens with this text (`pack_ids`). "\\0" stands for
    other text, and for a token that is not here."""
    openers: list[str]
    closers: list[str]
    """Texts that end a thought."""
    edges: list[str]
    """Texts after which a block begins; openers elsewhere may be mentions. Empty: they always
    count."""
    end: bytes
    """The tokens that end a thought (`pack_ids`)."""
    answer: bytes
    """The tokens that end a thought which opens when the budget is spent. In a format of messages
    they also open an answer."""


class ThoughtBudget(ThoughtSpelling, frozen=True, omit_defaults=True, kw_only=True):
    """A limit of a turn's reasoning tokens, which the worker enforces, and how the model writes
    reasoning."""

    tokens: int
    """The limit of all thoughts of the turn together, without the markers around them."""
    in_reasoning: bool = False
    """The prompt ends inside an open thought."""
    grammar: str = ""
    """Grammar of the output after an ended thought; "": it is free."""

    @classmethod
    def of(
        cls, spelling: ThoughtSpelling, tokens: int, *, in_reasoning: bool, grammar: str = ""
    ) -> "ThoughtBudget":
        """A budget of a model with this spelling."""
        return cls(**asdict(spelling), tokens=tokens, in_reasoning=in_reasoning, grammar=grammar)


NOT_HELD_S = 0.0
"""`GenerateRequest.held_s` of a turn that was not held. Of floats, the encoder leaves out only the
default object itself."""


class GenerateRequest(Struct, frozen=True, omit_defaults=True):
    """preprocessor → one worker: decode this prompt and send the tokens to `parser`."""

    turn: str
    attempt: int
    model: str
    prompt: bytes
    """Prompt token ids (`pack_ids`), without the output of earlier attempts."""
    parser: str
    """"": the output is discarded, as of a prefill for a likely next turn, which only an idle
    worker accepts."""
    frontend: str
    sampling: Sampling
    """`max_tokens` is always set: what the context window leaves, or less."""
    stop_ids: list[int]
    context: Raw
    """A `ParseContext`, carried unread in the stream's first entry."""
    resume: bytes = b""
    priority: float = 0.0
    """Greater is sooner."""
    timeout_s: float | None = None
    """Seconds after which the answer is useless, from the arrival of this message."""
    cache_salt: str | None = None
    guided: Raw = ABSENT
    """An `OutputFormat`, for engines with guided decoding."""
    grammar: str = ""
    """Grammar of the whole output, in llguidance's dialect of Lark. An engine without the feature
    `grammar` ignores it; the frontend then reports in a header that the request's promises are not
    enforced."""
    optional_grammar: bool = False
    """Nothing is promised to the client: if the engine refuses the grammar, the turn runs
    without."""
    thought_budget: ThoughtBudget | None = field(default=None, name="thoughts")
    """None: the turn's reasoning has no limit of its own."""
    trace: dict[str, str] = {}
    """W3C trace context, as in `TurnRequest`."""
    reused: int = 0
    """Tokens at the prompt's start that were not encoded: those of a known prompt, and original
    tokens of turns."""
    tool_tokens: int = 0
    """Tokens of the definitions of tools at the prompt's start, about: for observers of the bus."""
    retain_s: int = 0
    """Seconds for which an engine with the feature `retention` should prefer to keep the prompt; 0:
    as others."""
    tenant: str = ""
    """Shares the limit of what is retained; set with `retain_s`."""
    session: str = ""
    """A key of the turn's session (`schemas.session.tenant_key`), for engines with several
    caches."""
    recall: str = ""
    """The ledger's result for the newest earlier turn (`services.ledger.lookup.match.Outcome`); ""
    without a ledger."""
    notice: str = ""
    """Subject for a `PrefillNotice` of this turn; "": none."""
    notice_tokens: int = 0
    """The notice is sent only if the worker has to compute at least this many tokens of the
    prompt."""
    held_s: float = NOT_HELD_S
    """How long the preprocessor held the turn, until another one had computed the beginning of its
    prompt."""
    held_for: str = ""
    """That turn."""
    images: list[PromptImage] = []
    """The images in `prompt`, in order."""
    adapter: str = ""
    """The LoRA adapter that decodes; "": none."""
    any_weights: bool = False
    """The prompt may reuse KV blocks that other versions of the weights have computed."""
    time: float = 0.0
    """Unix time at which it was sent, for observers of the bus; 0: unknown."""

    @property
    def is_prefill(self) -> bool:
        """Whether the prompt is computed for no turn: its output is discarded."""
        return not self.parser


_PROMPT = b"\0"
"""Separates a request's JSON from its prompt. JSON text never contains it."""


_encode = msgspec.json.Encoder().encode


_decode_generate = msgspec.json.Decoder(GenerateRequest).decode


def encode_generate(request: GenerateRequest) -> bytes:
    """Encodes a request as JSON without `prompt`, a zero byte, and the prompt's bytes. For 52,000
    tokens base64 would cost 0.4 ms here and 0.7 ms at the worker, and a third more bytes."""
    return b"".join(
        (_encode(msgspec.structs.replace(request, prompt=b"")), _PROMPT, request.prompt)
    )


def decode_generate(data: bytes) -> GenerateRequest:
    """Reverses `encode_generate`; also accepts a request that is JSON only. The `Raw` fields are
    views of `data`.

    Raises msgspec.DecodeError and msgspec.ValidationError.
    """
    end = data.find(_PROMPT)
    if end < 0:
        return _decode_generate(data)
    return msgspec.structs.replace(_decode_generate(memoryview(data)[:end]), prompt=data[end + 1 :])


class GenerateReply(Struct, frozen=True, omit_defaults=True):
    """The immediate reply to a `GenerateRequest`. `error`: the worker does not accept it."""

    worker: str
    error: ErrorInfo | None = None
    expected_cached: int | None = field(default=None, name="held")
    """Prompt tokens that the worker expects in its KV cache. None: it refuses the turn, or sends no
    `PrefillNotice`."""


class PrefillNotice(Struct, frozen=True):
    """worker → the preprocessor of a turn, on `GenerateRequest.notice`: its first token is decoded,
    or it has ended without one. At most once; it may be lost."""

    turn: str
    computed: bool
    """The worker's KV cache holds the prompt."""
