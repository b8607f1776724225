"""The conversation into which the frontend translates the requests of every API.

A message is a list of parts in their original order. Arguments, call ids and sealed reasoning stay
as the client sent them. `docs/messages.md`, `docs/chat.md` and `docs/responses.md` describe the
translation.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""Levels of reasoning effort of all APIs, least first. `none` means off and is not a level."""
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
Unseal: TypeAlias = Callable[[str], str | None]
"""Opens sealed reasoning; returns None where the blob is foreign or damaged."""


def opens_nothing(seal: str) -> str | None:
    """An `Unseal` for clients without sealed reasoning."""
    return None


def rendered_name(name: str, namespace: str | None) -> str:
    """The one name under which the model sees a tool."""
    return f"{namespace}__{name}" if namespace else name


class Text(Struct, frozen=True, tag="text"):
    """Plain text, byte for byte as the client sent it."""

    text: str


class Media(Struct, frozen=True, tag="media", omit_defaults=True):
    """An image, document or audio. Its bytes are not sent with it over the bus, only its type, size
    and URL."""

    kind: Literal["image", "document", "audio"]
    media_type: str = ""
    size_bytes: int | None = None
    url: str | None = None
    title: str | None = None
    """A file name or document title, if the client sent one."""
    problem: str = ""
    """Why a document's text was not read, if this server tried."""
    hash: str = ""
    """Set if the model gets the image: `images.image_hash` of its data, its key in the bucket
    `tw_media`."""
    width: int = 0
    """Pixels, of an image with a hash, upright."""
    height: int = 0


class Reasoning(Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """The model's reasoning. `text` None: the client sent only `seal`, or neither."""

    text: str | None = None
    seal: str | None = None
    """Messages' `signature` or `redacted_thinking.data`, Responses' `encrypted_content`; opaque,
    possibly foreign."""
    summary: list[str] = []
    id: str | None = None


class Call(Struct, frozen=True, tag="call", omit_defaults=True):
    """A tool call. `arguments` is the JSON text as the client spelled it (numbers, key order and
    spacing kept)."""

    call_id: str
    name: str
    arguments: str
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None
    item_id: str | None = None
    original_id: str | None = None
    """The id that the model wrote, in a turn that the ledger restored: the template shows this
    one."""

    @property
    def rendered_name(self) -> str:
        """The name of the tool as the model sees it."""
        return rendered_name(self.name, self.namespace)


class ToolReference(Struct, frozen=True, tag="tool_reference"):
    """The point in a result from which on the model sees a deferred tool (Claude Code's
    ToolSearch)."""

    name: str


ResultPart: TypeAlias = Text | Media | ToolReference


class Result(Struct, frozen=True, tag="result", omit_defaults=True):
    """A tool's result. `is_error` None: the client did not send it."""

    call_id: str
    parts: list[ResultPart] = []
    is_error: bool | None = None
    name: str | None = None


Part: TypeAlias = Text | Media | Reasoning | Call | Result


class Message(Struct, frozen=True, omit_defaults=True):
    """One message. Results are in messages of their own (`role="tool"`); instructions keep their
    place."""

    role: Role
    parts: list[Part]
    name: str | None = None
    ids: list[str] = []
    """Ids of the items in which the client sent this message, besides the ids of its parts
    (Responses)."""


class Grammar(Struct, frozen=True):
    """The grammar of a freeform tool's input (Responses and Chat: `format.type` = `grammar`)."""

    syntax: str
    """`lark` or `regex`."""
    definition: str


HostedKind: TypeAlias = Literal["web_search", "web_fetch", "tool_search_regex", "tool_search_bm25"]
TOOL_SEARCHES: Final[frozenset[HostedKind]] = frozenset({"tool_search_regex", "tool_search_bm25"})


class HostedTool(Struct, frozen=True, omit_defaults=True):
    """A tool that the frontend runs between two turns of the model, and its limits in one
    request. The searches of tools find deferred tools of the request."""

    kind: HostedKind
    max_uses: int | None = None
    allowed_domains: list[str] = []
    blocked_domains: list[str] = []
    location: dict[str, Any] = {}
    """The user's approximate location, as the client sent it."""
    max_chars: int | None = None
    """Limit of characters per page."""
    deferred: bool = False
    """The rules of Messages: beside a call of a client's tool, it runs with the client's next
    request; after many rounds the answer pauses. False: the rules of Responses: it runs at once,
    and the last round has no tools."""
    hidden: bool = False
    """The client sees neither its calls nor their results, so this server remembers them for the
    next prompts of the session."""

    @property
    def searches_tools(self) -> bool:
        """Whether it searches the request's deferred tools, for which no provider is needed."""
        return self.kind in TOOL_SEARCHES


class ToolSpec(Struct, frozen=True, omit_defaults=True, weakref=True):
    """A tool as the model sees it. `schema` is the JSON schema of its arguments, key order kept."""

    name: str
    description: str = ""
    schema: dict[str, Any] = {}
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None
    deferred: bool = False
    """Loaded by the `ToolReference` that names it; not in the tool list at the start of the
    prompt."""
    strict: bool | None = None
    grammar: Grammar | None = None
    """The grammar of a freeform tool (`kind="custom"`), if it has one."""
    hosted: HostedTool | None = None
    """Set if the frontend runs the tool; the other stages treat it like any function."""

    @property
    def rendered_name(self) -> str:
        """The name under which the model sees the tool."""
        return rendered_name(self.name, self.namespace)

    @property
    def names(self) -> set[str]:
        """The names by which a `ToolChoice` may mean the tool: its own, and the one that the model
        sees."""
        return {self.name, self.rendered_name}


class ToolChoice(Struct, frozen=True, omit_defaults=True):
    """`any`: at least one call; `tool`: a call of `name`; `none`: tools are in the prompt and may
    not be called."""

    mode: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    parallel: bool = True
    namespace: str | None = None
    """Namespace of the tool `name`."""
    allowed: list[str] = []
    """The only tools that may be called (`allowed_tools`); empty: all. The prompt has all of them
    in any case, so that a session keeps its prefix."""

    @property
    def rendered_name(self) -> str:
        """`name` as the model sees it; "" if the choice names no tool."""
        return rendered_name(self.name or "", self.namespace)

    def chosen(self, tools: Iterable[ToolSpec]) -> ToolSpec | None:
        """The tool that must be called, where the mode is `tool`; None: it is not among the tools.
        A bare name means the tool without a namespace, if there is one."""
        candidates = [
            tool
            for tool in tools
            if self.name in tool.names and self.namespace in (None, tool.namespace)
        ]
        return min(candidates, key=lambda tool: tool.namespace is not None, default=None)


class Thinking(Struct, frozen=True, omit_defaults=True):
    """The client's reasoning settings. `default`: unspecified, the model decides."""

    mode: Literal["default", "enabled", "adaptive", "disabled"] = "default"
    budget_tokens: int | None = None
    effort: str | None = None
    display: Literal["full", "omitted"] = "full"
    history: Literal["default", "keep", "drop"] = "default"
    """Reasoning of earlier turns: by the model's own rule, all of it, or only that of the current
    tool loop (Responses' `reasoning.context`, Messages' `clear_thinking_20251015`)."""
    count_tokens: bool = False
    """The answer reports the tokens of each thought."""


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How to choose tokens. None: the model's own default (generation_config), else the
    engine's."""

    max_tokens: int | None = None
    """Limit of output tokens; None: to the end of the context window; 0: prefill only."""
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logprobs: int | None = None
    """Number of alternatives per token; 0: the chosen token only; None: no log probabilities."""
    stop: list[str] = []
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    """Further ids that end the turn."""
    include_stop: bool = False
    """The stop string stays at the end of the text (vLLM's `include_stop_str_in_output`)."""
    logit_bias: dict[int, float] = {}
    return_token_ids: bool = False
    """The answer has the ids of prompt and output, under vLLM's name."""


class OutputFormat(Struct, frozen=True, omit_defaults=True):
    """Structured output: any JSON object, or one that matches `schema`."""

    kind: Literal["json_object", "json_schema"]
    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class Client(Struct, frozen=True, omit_defaults=True):
    """The client, for routing and logs; never part of the prompt."""

    session: str | None = None
    """The agent's session; helpers of an agent have their own."""
    user_agent: str | None = None
    tenant: str | None = None
    """Name of the API key; None if the server has no keys."""
    alias: str | None = None
    """The model's name in the request, if other models may have it, too."""
    parent: str | None = None
    """The session of the agent that started this one; None: a person or a program did, or the
    client does not say."""
    kind: Literal["main", "helper", "background"] = "main"
    """`helper`: an agent waits for this one; `background`: no one waits for it (titles, recaps)."""
    compare: str | None = None
    """Id of the earlier turn with which the prompt is compared. "": none, but later prompts may be
    compared with this one; None: no comparison at all."""


class Hints(Struct, frozen=True, omit_defaults=True):
    """Hints for scheduling and caching (`nvext.agent_hints`, `priority`, `cache_salt`); never part
    of the prompt."""

    latency_sensitivity: float | None = None
    """From 0 (batch work) up; larger goes first."""
    priority: int | None = None
    """Larger goes first."""
    osl: int | None = None
    """Expected output tokens."""
    speculative_prefill: bool = False
    """Prefill the certain prefix of the next turn as soon as this one has ended."""
    cache_salt: str | None = None
    """Prompts with different salts share no KV blocks."""
    retain_s: int = 0
    """Seconds for which the client expects to use the prompt's prefix again; 0: unspecified."""
    any_weights: bool = False
    """The prompt may reuse KV blocks that other versions of the weights have computed."""


class RawPrompt(Struct, frozen=True, omit_defaults=True):
    """A prompt of `/v1/completions`: sent to the model unchanged; the output is text."""

    text: str | None = None
    token_ids: bytes = b""
    """Packed (`token_ids.pack_ids`); used where `text` is None."""
    add_special_tokens: bool = True


class Conversation(Struct, frozen=True, omit_defaults=True):
    """Everything that decides a prompt and its decoding, the same for every API."""

    model: str
    messages: list[Message]
    system: list[Text] = []
    """Top-level instructions; those inside the conversation are messages with role system or
    developer."""
    tools: list[ToolSpec] = []
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    thinking: Thinking = field(default_factory=Thinking)
    sampling: Sampling = field(default_factory=Sampling)
    format: OutputFormat | None = None
    template_kwargs: dict[str, Any] = {}
    """The client's own template variables (vLLM's and SGLang's `chat_template_kwargs`)."""
    client: Client = field(default_factory=Client)
    verbosity: str | None = None
    """low, medium or high, for templates that read it."""
    hints: Hints = field(default_factory=Hints)
    prompt: RawPrompt | None = None
    """If set, there are no messages, no template and no parsing."""
    continues_answer: bool = field(default=True, name="prefill")
    """The answer continues a last assistant message that ends in text. False: a new message follows
    it."""
    summary: bool = False
    """The answer is a summary for programs: nothing is added to it for a user. The frontend does
    not send this."""
    adapter: str = ""
    """The LoRA adapter of `model` that decodes, one of `ModelCard.adapters`; "": none."""
