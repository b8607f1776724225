"""The settings of every process: one frozen class per service, with types, bounds and defaults.

The string under a field is its help text on the command line, and names include units. Secrets are
never values: a field names the file that holds the secret, and `read_secret` reads it at its use.
`loader` finds the values.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from schemas.conversation import EFFORTS

MIB = 1024 * 1024

Port: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Count: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1))]
Processes: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=1000))]
Amount: TypeAlias = Annotated[float, Parameter(validator=Number(gte=0, lt=inf))]
Seconds: TypeAlias = Amount
Positive: TypeAlias = Annotated[float, Parameter(validator=Number(gt=0, lt=inf))]
FROM_FILE = Parameter(accepts_keys=False, n_tokens=1)
"""Parameter of a dict with a text that is a JSON object or a file's name, not one of its items."""
Table: TypeAlias = Annotated[dict[str, Any], FROM_FILE]
Budgets: TypeAlias = Annotated[dict[str, int], FROM_FILE]
MAX_BUDGET: Final = 2**31 - 1
"""More reasoning tokens than any context window has; a larger number is a mistake."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The base of all configurations."""


def also(*flags: str) -> Parameter:
    """Adds names to a flag: those of vLLM, SGLang, TensorRT-LLM and Dynamo for the same setting."""
    return Parameter(alias=flags)


@dataclass(frozen=True, kw_only=True)
class BusConfig(Config):
    """The connection to the bus, heartbeats and flow control."""

    nats_url: str = "nats://127.0.0.1:4222"
    """URL of the NATS server; several servers of a cluster are separated by commas. Commands that
    watch the bus use that of the newest `turnwire up` on this machine, if one runs."""
    nats_user: str | None = None
    """User name at the NATS server."""
    nats_password_file: str | None = None
    """File with the user's password."""
    nats_creds_file: str | None = None
    """NATS credentials file (JWT and seed), instead of user and password."""
    nats_ca_file: str | None = None
    """PEM file of certificate authorities, one of which signed the NATS server's certificate;
    default: those of the system."""
    nats_cert_file: str | None = None
    """PEM file with this process's certificate, for a server that requires one."""
    nats_key_file: str | None = None
    """PEM file with the certificate's private key; default: `nats_cert_file` contains it."""
    heartbeat_key_file: str | None = None
    """File with the key that authenticates heartbeats, the same for all processes; default:
    heartbeats are not authenticated."""
    connect_timeout_s: Positive = 30.0
    """Longest time for the first connection; then the process exits."""
    beat_interval_s: Positive = 1.0
    """Time between two heartbeats."""
    dead_after_s: Positive = 3.5
    """Time without a heartbeat after which a process counts as dead and its turns move to another
    one."""
    recovery_s: Seconds = 90.0
    """How long turns wait for a successor of a lost process; the same for all processes
    (docs/reliability.md)."""
    window_bytes: Annotated[int, Parameter(validator=Number(gte=4096))] = MIB
    """Flow control: most bytes that another process may send to this one before this one
    acknowledges them."""

    def __post_init__(self) -> None:
        """Rejects combinations that cannot work."""
        if self.dead_after_s < 2 * self.beat_interval_s:
            raise ValueError(
                "dead_after_s must be at least twice beat_interval_s: one heartbeat may be late"
            )
        if self.nats_creds_file and (self.nats_user or self.nats_password_file):
            raise ValueError("nats_creds_file excludes nats_user and nats_password_file")
        if self.nats_key_file and not self.nats_cert_file:
            raise ValueError("nats_key_file needs a nats_cert_file")


@dataclass(frozen=True, kw_only=True)
class ServiceConfig(Config):
    """Settings of all four services."""

    id: str | None = None
    """Name of this process on the bus, to which a random part is added; default: the host's
    name."""
    bus: BusConfig = field(default_factory=BusConfig)
    log_format: Literal["auto", "json", "console"] = "auto"
    """`json`: one JSON object a line; `console`: text for people; `auto`: text on a terminal, else
    JSON."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level to log."""
    drain_s: Seconds = 30.0
    """Longest time for running turns to end after SIGTERM."""
    tracing: bool = False
    """Record OpenTelemetry traces and export them by OTLP (docs/tracing.md); needs the extra
    `otel`."""
    trace_ratio: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] | None = None
    """Share of the requests without a trace of their client that is traced; default:
    `OTEL_TRACES_SAMPLER`, else all of them."""
    otlp_endpoint: str | None = None
    """URL of the receiver of traces; default: `OTEL_EXPORTER_OTLP_ENDPOINT`, else port 4318 of this
    machine."""


@dataclass(frozen=True, kw_only=True)
class LedgerStoreConfig(Config):
    """The bucket of earlier turns."""

    ledger_ttl_s: Positive = 24 * 3600.0
    """Time after which JetStream deletes a turn that was not written again; `turnwire buckets`
    applies it."""
    ledger_store_mb: Annotated[int, Parameter(validator=Number(gte=0))] = 512
    """JetStream storage in MiB for the turns of all models, the same for preprocessor and parser;
    `turnwire buckets` applies it. 0: memory only."""


@dataclass(frozen=True, kw_only=True)
class ResponseStoreConfig(Config):
    """The limits of the store of Responses and message threads."""

    response_store_ttl_s: Positive = 24 * 3600.0
    """Time after which a stored response, or reply of a thread, is deleted."""
    response_store_bytes: Annotated[int, Parameter(validator=Number(gte=MIB))] = 256 * MIB
    """Most bytes of stored responses and threads in a frontend and, if they are shared, in
    JetStream, where `turnwire buckets` applies it."""


@dataclass(frozen=True, kw_only=True)
class ImageStoreConfig(Config):
    """The bucket of images, for models that get them."""

    image_ttl_s: Positive = 6 * 3600.0
    """Time after which JetStream deletes an image that was not sent again; `turnwire buckets`
    applies it."""
    image_store_mb: Annotated[int, Parameter(validator=Number(gte=16))] = 1024
    """JetStream storage in MiB for images; `turnwire buckets` applies it."""


@dataclass(frozen=True, kw_only=True)
class RolloutStoreConfig(Config):
    """The bucket of rollouts, for training."""

    rollout_ttl_s: Positive = 24 * 3600.0
    """Time after which JetStream deletes a turn of a rollout; `turnwire buckets` applies it."""
    rollout_store_mb: Annotated[int, Parameter(validator=Number(gte=0))] = 1024
    """JetStream storage in MiB for rollouts, of which the oldest are deleted; `turnwire buckets`
    applies it. 0: there are no rollouts."""


@dataclass(frozen=True, kw_only=True)
class BucketsConfig(LedgerStoreConfig, ResponseStoreConfig, ImageStoreConfig, RolloutStoreConfig):
    """The buckets in JetStream, which `turnwire buckets` creates."""

    bus: BusConfig = field(default_factory=BusConfig)
    bucket_replicas: Annotated[int, Parameter(validator=Number(gte=1, lte=5))] | None = None
    """Servers of a NATS cluster that hold a copy of each bucket; default: 5, 3 or 1, as many as
    there are. With 3, the buckets outlive one server."""
    every_s: Positive | None = None
    """Go on, and make lost buckets again at this interval."""


@dataclass(frozen=True, kw_only=True)
class FrontendConfig(ResponseStoreConfig, ImageStoreConfig, RolloutStoreConfig, ServiceConfig):
    """The HTTP server: addresses, limits and APIs."""

    host: Annotated[str, also("--http-host")] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[Port, also("--http-port")] = 8000
    """Port to listen on; 0: a free one."""
    tls_cert_file: str | None = None
    """PEM file with the server's certificate and its chain: serve HTTPS. Read again on change."""
    tls_key_file: str | None = None
    """PEM file with the certificate's private key; default: `tls_cert_file` contains it."""
    tls_client_ca_file: str | None = None
    """PEM file of certificate authorities: clients need a certificate from one of them, except for
    health checks."""
    cors_origins: list[str] = field(default_factory=list)
    """Origins of the pages that may use the server in a browser, for example `https://app.example`;
    `*`: all."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Host names of this server; requests to other names are refused, against DNS rebinding. `*`:
    all names. Default: `localhost` and `host` where the server has no keys and listens on this
    machine only, else all. IP addresses are always allowed."""
    api_keys_file: str | None = None
    """File with the API keys that are accepted, one a line: `NAME:SHA256`, then its options
    (`turnwire key` adds lines). Read again on change; default: no key is needed."""
    key_concurrency: Count | None = None
    """Concurrent requests of a key, unless its line in the key file has a limit; without a key
    file: of all clients."""
    key_requests_per_minute: Count | None = None
    """Requests of a key per minute, unless its line in the key file has a limit; without a key
    file: of all clients."""
    key_tokens_per_minute: Count | None = None
    """Tokens of a key per minute, unless its line in the key file has a limit; without a key file:
    of all clients."""
    key_metrics: Annotated[int, Parameter(validator=Number(gte=0, lte=10_000))] = 0
    """Most names of keys that metrics show, which need no key to be read; further ones are counted
    as `other` (docs/metrics.md)."""
    max_body_bytes: Annotated[int, Parameter(validator=Number(gte=1024))] = 64 * MIB
    """Largest request body; larger ones are refused with status 413."""
    max_messages: Count = 100_000
    """Most messages in a request."""
    max_tools: Count = 1024
    """Most tools in a request."""
    max_media: Count = 1024
    """Most images and documents in a request."""
    max_images: Count = 100
    """Most images in a request to a model that gets images."""
    image_url_hosts: list[str] = field(default_factory=list)
    """Hosts from which images by `https:` URL are fetched for models that get images, for example
    `*.example.org`; never from private addresses. Default: none."""
    pdf_max_pages: Count = 200
    """Most pages of a PDF with text in the prompt; a line states how many are left out."""
    pdf_page_images: Annotated[int, Parameter(validator=Number(gte=0, lte=100))] = 10
    """Most pages of a PDF that a model which gets images also gets as images, of some 2,000 tokens
    each."""
    media_notice: bool = True
    """End an answer with a note to the user that the model does not receive the images of the
    conversation, once in a session. No prompt has it."""
    max_nesting: Count = 64
    """Deepest nesting of objects and lists in a tool's schema."""
    max_connections_per_address: Count | None = None
    """Most connections of one client address, a /64 network of IPv6; further ones are refused with
    status 429. Through a proxy all connections have its address. Default: unlimited."""
    head_timeout_s: Positive = 30.0
    """Longest time from a connection to the headers of its first request; then it is closed."""
    body_timeout_s: Positive = 120.0
    """Longest time for a request's body to arrive; then it is refused with status 408."""
    ping_interval_s: Positive = 10.0
    """Time without output after which a stream gets a keep-alive event."""
    slow_reader_timeout_s: Positive = 30.0
    """Time after which a turn is cancelled because its client reads nothing."""
    max_buffered_bytes: Annotated[int, Parameter(validator=Number(gte=65536))] = 8 * MIB
    """Unread bytes at which a turn is cancelled because its client reads too slowly."""
    enable_anthropic_api: bool = True
    """Serve the Messages API."""
    enable_streaming_tool_dispatch: bool = False
    """Send a `tool_call_dispatch` event with each complete tool call to every client, not only on
    request."""
    enable_streaming_reasoning_dispatch: bool = False
    """Send a `reasoning_dispatch` event with each complete reasoning block to every client, not
    only on request."""
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = "reasoning_content"
    """Field for reasoning in messages of Chat Completions, unless the client requests another."""
    reasoning_details: bool = False
    """Send sealed reasoning in `reasoning_details` of Chat Completions to every client, not only on
    request."""
    request_timeout_s: Positive = 3600.0
    """Longest time from a request to the end of its response."""
    default_model: str | None = None
    """Model for requests that name none."""
    accept_any_model: bool = False
    """Serve requests for unknown models with the default model, or with the only model."""
    codex_models_file: str | None = None
    """File with the model catalogue of Codex (`codex debug models --bundled`), the source of
    `codex_profiles`."""
    codex_profiles: Annotated[dict[str, str], FROM_FILE] = field(default_factory=dict)
    """Slugs of profiles in `codex_models_file` by served name, `*` for all names: a JSON object, or
    a JSON, YAML or TOML file. A name that is a slug needs no entry; other names get Turnwire's
    profile."""
    accept_timeout_s: Positive = 2.0
    """Longest time for a preprocessor to accept a turn; then the turn goes to another one."""
    wait_s: Seconds = 30.0
    """How long new requests wait for the bus, or for a stage that was there within `recovery_s`;
    then status 503."""
    engine_control_s: Positive = 3600.0
    """How long a worker may take for a pause or for other weights (`/engines`). An inference server
    has 1,800 s to load them."""
    attempts: Count = 3
    """How often a turn is tried that gets no further because a process dies with it."""
    seal_key_file: str | None = None
    """File with the key that seals compacted conversations, the same for preprocessor and parser;
    default: a key derived from the model's name."""
    response_store: Literal["memory", "shared"] = "memory"
    """Where Responses and message threads are stored. `memory`: in this process; `shared`: also in
    JetStream, for several frontends and across restarts."""
    response_store_entries: Count = 20_000
    """Most stored responses and replies of threads in this process; the least recently used ones
    are dropped."""
    max_background: Count = 64
    """Most background responses that run at once; the same number may wait."""
    enable_responses_websocket: bool = True
    """Serve Responses over WebSocket. Without it, upgrades are refused with status 426 and clients
    use HTTP."""
    max_websockets: Count = 1024
    """Most concurrent WebSocket connections."""
    web_provider: str | None = None
    """URL of the provider of web search and fetch (docs/hosted-tools.md); default: neither is
    served."""
    web_fetch: bool = False
    """The provider also reads pages: serve web fetch, too."""
    web_provider_protocol: Literal["http", "mcp"] = "http"
    """`http`: one POST for each call; `mcp`: an MCP server over streamable HTTP, with the extra
    `mcp`."""
    web_search_tool: str = "web_search"
    """The MCP server's tool that searches; its argument is `query`."""
    web_fetch_tool: str = "web_fetch"
    """The MCP server's tool that reads a page; its argument is `url`."""
    web_provider_key_file: str | None = None
    """File with the key that the provider gets as a bearer token; read at each call."""
    web_timeout_s: Positive = 20.0
    """Longest time of one search or fetch."""
    web_max_rounds: Count = 10
    """Most turns of the model in one answer after calls of hosted tools."""
    web_max_calls: Count = 20
    """Most calls of hosted tools in one answer; a request's `max_uses` may only lower it."""
    web_max_chars: Count = 100_000
    """Most characters of one search or page that the model gets."""
    web_allow_private: bool = False
    """Let the model fetch literal private addresses and local names."""
    defer_tools: Count | None = None
    """Tools at the start of the prompt of a request that has more, and no search of its own: the
    model finds the others by a search, which clients do not see (docs/tool-search.md); default: no
    limit."""

    def __post_init__(self) -> None:
        """Rejects combinations that cannot work."""
        if self.tls_cert_file is None and (self.tls_key_file or self.tls_client_ca_file):
            raise ValueError("tls_key_file and tls_client_ca_file need a tls_cert_file")
        if self.web_provider is not None and not self.web_provider.startswith(
            ("http://", "https://")
        ):
            raise ValueError(f"web_provider: {self.web_provider} is not an http or https URL")

    @property
    def served_tools(self) -> list[str]:
        """The kinds of hosted tools that are served. Searches of tools need no provider."""
        if self.web_provider is None:
            return ["tool_search"]
        if self.web_fetch:
            return ["tool_search", "web_search", "web_fetch"]
        return ["tool_search", "web_search"]


@dataclass(frozen=True, kw_only=True)
class StageConfig(ServiceConfig):
    """Settings of the services behind the frontend: the model, and a port for metrics and
    health."""

    model: Annotated[str, also("--model-path")]
    """Directory or hub id of the model: tokenizer, chat template and, for engines that need them,
    weights; default: a demo model in `turnwire up`, none elsewhere."""
    served_model_name: Annotated[str | None, also("--model-name")] = None
    """Name of the model for clients, or several names separated by commas; default: the hub id or
    the directory's name."""
    trust_remote_code: bool = False
    """Run Python code from the model directory."""
    metrics_host: str = "127.0.0.1"
    """Address for /metrics, /live and /ready."""
    metrics_port: Port | None = None
    """Port for /metrics, /live and /ready; default: they are not served."""

    @property
    def model_name(self) -> str:
        """The name on the bus and for clients: the first served name, else the hub id or the
        directory's name."""
        if self._names:
            return self._names[0]
        path = Path(self.model)
        if path.is_dir() or self.model.startswith(("/", "./", "../", "~")):
            return path.expanduser().resolve().name
        return self.model

    @property
    def other_names(self) -> list[str]:
        """The served names after the first one."""
        return self._names[1:]

    @property
    def _names(self) -> list[str]:
        names = (self.served_model_name or "").split(",")
        return [name.strip() for name in names if name.strip()]


@dataclass(frozen=True, kw_only=True)
class PreprocessorConfig(LedgerStoreConfig, StageConfig):
    """Renders conversations to prompts."""

    aliases: Annotated[list[str], also("--alias")] = field(default_factory=list)
    """Further names of the model for clients. Models may share one (docs/several-models.md)."""
    alias_weight: Amount = 1.0
    """Share of the new sessions that this model gets for an alias that it shares with others; 0:
    none, while others take turns. Sessions stay with their model."""
    chat_template: Annotated[str | None, also("--custom-jinja-template")] = None
    """File with a chat template that replaces the model's own."""
    family: str = "auto"
    """Parser family of the model's output, or a pair `CALLS+REASONING`; `auto`: detected from its
    chat template and configuration."""
    tool_call_parser: Annotated[str | None, also("--dyn-tool-call-parser", "--tool-parser")] = None
    """Tool-call format, by its name in vLLM, SGLang or Dynamo; takes precedence over `family`."""
    reasoning_parser: Annotated[str | None, also("--dyn-reasoning-parser")] = None
    """Reasoning format, by its name in vLLM, SGLang or Dynamo; replaces that of `family` or
    `tool_call_parser`."""
    response_template: str | None = None
    """File with a `response_template` that describes the model's output, instead of a parser
    family; default: the model's own, if no family is detected (docs/families.md)."""
    strip_anthropic_preamble: bool = True
    """Remove Claude Code's billing block, which changes with every conversation and defeats prefix
    caching."""
    control_tokens_in_data: bool = False
    """Encode control tokens that the text of users, files or tools spells as control tokens, which
    lets such text forge turns (docs/prompts.md); default: as ordinary text."""
    max_model_len: Annotated[Count | None, also("--context-length", "--max-seq-len")] = None
    """Context window in tokens, if smaller than the worker's; default: the worker's."""
    max_output_tokens: Count | None = None
    """Most output tokens of a turn; default: as many as the context window leaves."""
    threads: Count = 4
    """Threads that render and tokenize."""
    render_timeout_s: Positive = 10.0
    """Most time that the chat template may take for one prompt."""
    tokenizer: Literal["auto", "fastokens", "tokenizers"] = "auto"
    """Library that encodes prompts; `auto`: fastokens if its tokens are equal for this model, else
    tokenizers."""
    template_engine: Literal["auto", "jinja"] = "auto"
    """Library that renders the chat template; `auto`: minijinja if its texts are equal for this
    template, else Jinja."""
    prompt_cache_mb: Count = 64
    """Memory in MiB for tools, encoded text and the last prompts of sessions, each
    (docs/prompts.md)."""
    router_overlap_weight: Amount = 1.0
    """Routing: cost of a prompt token that is not in a worker's KV cache; 0: ignore the caches."""
    router_load_tokens: Amount = 16384.0
    """Routing: cost of a worker without free slots, in prompt tokens."""
    router_offload_weight: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.2
    """Routing: cost of a prompt token that a worker loads from a slower memory, as a share of one
    that it computes."""
    hold_tokens: Annotated[int, Parameter(validator=Number(gte=0))] = 2048
    """Hold a turn while another one computes this many tokens or more of the beginning of its
    prompt; 0: never (docs/routing.md)."""
    template_kwargs: Annotated[Table, also("--default-chat-template-kwargs")] = field(
        default_factory=dict
    )
    """Variables of the chat template for every request: a JSON object, or a JSON, YAML or TOML
    file."""
    effort_budgets: Budgets = field(default_factory=dict)
    """Most reasoning tokens of a turn by level of effort, as in `low=1024,medium=4096,high=16384`
    (docs/thinking.md); default: none."""
    guide_calls: Literal["off", "syntax", "schema"] = "off"
    """Calls that cannot be broken (docs/guided-turns.md). `syntax`: the model can call only tools
    of the request, in its family's syntax; `schema`: also with the members and types of their
    schemas."""
    seal_key_file: str | None = None
    """File with the key that seals reasoning, the same for the parser; default: a key derived from
    the model's name."""
    enable_ledger: bool = True
    """Use the original tokens of a session's earlier turns in its prompts (docs/ledger.md)."""
    ledger_mb: Count = 64
    """Memory in MiB for the tokens of earlier turns, and the same again for whole prompts."""

    def __post_init__(self) -> None:
        """Rejects two descriptions of the output, budgets of no level, and those that leave
        nothing."""
        if self.response_template and (
            self.family != "auto" or self.tool_call_parser or self.reasoning_parser
        ):
            raise ValueError(
                "response_template takes the place of family, tool_call_parser and reasoning_parser"
            )
        for level, tokens in self.effort_budgets.items():
            if level not in EFFORTS:
                near = difflib.get_close_matches(level, EFFORTS, n=1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                levels = ", ".join(EFFORTS)
                raise ValueError(
                    f'effort_budgets: "{level}" is not a level of effort; there are {levels}{hint}'
                )
            if not 1 <= tokens <= MAX_BUDGET:
                raise ValueError(f"effort_budgets: {level} must be 1 to {MAX_BUDGET}, not {tokens}")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(StageConfig):
    """Runs one engine."""

    engine: str = "script"
    """The engine: `script` (without weights), `transformers`, `trtllm`, `vllm`; `vllm-server`,
    `sglang-server`, `llama-server`; or a plugin."""
    slots: Annotated[Count, also("--max-num-seqs", "--max-batch-size")] = 256
    """Most turns that decode concurrently."""
    queue_limit: Annotated[int, Parameter(validator=Number(gte=0))] = 1024
    """Most turns that wait for a slot; further ones are refused."""
    max_model_len: Annotated[Count | None, also("--context-length", "--max-seq-len")] = None
    """Context window in tokens; default: the model's own."""
    family: str = "auto"
    """Parser family of the model's output; `auto`: detected from its chat template. Only the script
    engine uses it."""
    response_template: str | None = None
    """File with a `response_template` that describes the model's output. Only the script engine
    uses it."""
    script_dir: str | None = None
    """Script engine: directory of outputs to play, instead of the built-in agent."""
    script_mode: Literal["agent", "request"] = "agent"
    """Script engine. `agent`: play `script_dir` or the built-in agent; `request`: requests contain
    the output (for tests)."""
    token_delay_ms: Amount = 5.0
    """Script engine: time between two tokens of a turn."""
    prefill_tokens_per_s: Amount = 0.0
    """Script engine: prefill speed; 0: no delay."""
    device: str = "auto"
    """Device of the transformers engine: `auto`, `cpu`, `cuda`, `cuda:1`, `mps` …"""
    dtype: str = "auto"
    """Data type of the weights: `auto` (that of the checkpoint), `bfloat16`, `float16`,
    `float32`."""
    kv_tokens: Count | None = None
    """Capacity of the KV cache in tokens; default: chosen by the engine."""
    engine_args: Annotated[Table | None, also("--extra-llm-api-options")] = None
    """Options for the engine itself: a JSON object, or a JSON, YAML or TOML file."""
    engine_url: str | None = None
    """Address of the inference server, for engines that decode through one, such as
    http://127.0.0.1:8000; several with commas (`turnwire up`): a worker for each."""
    engine_api_key_file: str | None = None
    """File with the key that the inference server wants."""
    weights_dir: str | None = None
    """Directory with all weights that operators may load with `POST /engines/weights`; default:
    none."""
    watchdog_s: Positive = 120.0
    """Time without output after which an engine with running turns counts as dead."""
    routed_experts_dir: str | None = None
    """Directory for the experts to which the tokens of each turn were routed, where the inference
    server sends them (vLLM and SGLang with --enable-return-routed-experts); default: none are
    kept."""
    routed_experts_mb: Count = 10_000
    """Most megabytes in that directory; older files are removed."""

    @property
    def engine_urls(self) -> list[str]:
        """The inference servers; one worker process decodes on one."""
        urls = (self.engine_url or "").split(",")
        return [url.strip() for url in urls if url.strip()]


@dataclass(frozen=True, kw_only=True)
class ParserConfig(LedgerStoreConfig, StageConfig):
    """Parses tokens to events."""

    seal_key_file: str | None = None
    """File with the key that seals reasoning, the same for the preprocessor; default: a key derived
    from the model's name."""


@dataclass(frozen=True, kw_only=True)
class UpConfig(Config):
    """The processes that `turnwire up` starts on this machine."""

    frontends: Processes = 1
    """Number of frontends; the second and later ones listen on free ports."""
    preprocessors: Processes = 1
    """Number of preprocessors."""
    workers: Processes = 1
    """Number of workers; each loads the model."""
    parsers: Processes = 1
    """Number of parsers."""
    demo_vision: bool = False
    """Let the demo model get images, as a model with vision does; it calls them `image`."""
    models: Table = field(default_factory=dict)
    """File with several models (docs/several-models.md)."""
    state_dir: str | None = None
    """Directory for the demo model and the sealing key; default: `turnwire` in the user's state
    directory."""
    metrics_host: str = "127.0.0.1"
    """Address for the metrics of all processes."""
    metrics_port: Port | None = None
    """Port for the metrics of all processes; 0: a free one; default: they are not served."""
    inspect: bool = False
    """Serve the inspector too, a page that shows turns and sessions (`turnwire inspect`)."""
    inspect_port: Port = 8090
    """Port of the inspector on this machine; 0: a free one."""
    ready_file: str | None = None
    """File to write when requests can be served: a JSON object with `url` and more."""


STAGES: Mapping[str, type[ServiceConfig]] = {
    "frontend": FrontendConfig,
    "preprocessor": PreprocessorConfig,
    "worker": WorkerConfig,
    "parser": ParserConfig,
}
TABLES: Mapping[str, type[Config]] = {
    **STAGES,
    "bus": BusConfig,
    "buckets": BucketsConfig,
    "up": UpConfig,
}
"""The tables of a configuration file."""


def read_secret(path: str) -> str:
    """The text of a secret without surrounding white space. Raises ValueError with the file's name
    if it has none."""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the secret in {path}: {error}") from error
    if not secret:
        raise ValueError(f"the secret file {path} is empty")
    return secret


def read_key(path: str) -> str:
    """A secret for an HTTP header. Raises ValueError with the file's name if it cannot be one."""
    key = read_secret(path)
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"the key in {path} is not one line of printable ASCII characters")
    return key
