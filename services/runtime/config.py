"""What every process can be told: one frozen Struct per service, defaults and bounds included.

Where a value comes from (flag, `TURNWIRE_*` variable, TOML file, default) is `config_sources`' business. The string
under a field is its help text on the command line. Units are in the names. Secrets are never values: a field names the
file that holds one, and `read_secret` reads it at the moment of use.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

MIB = 1024 * 1024

Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]


class BusConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach the bus, and how processes keep an eye on each other over it."""

    nats_url: str = "nats://127.0.0.1:4222"
    """Server to connect to; several of one cluster are separated by commas."""
    nats_user: str | None = None
    """User name on the server."""
    nats_password_file: str | None = None
    """File that holds the user's password."""
    nats_creds_file: str | None = None
    """NATS credentials file (JWT and seed), instead of user and password."""
    connect_timeout_s: Positive = 30.0
    """How long the first connection may take before the process gives up."""
    beat_interval_s: Positive = 1.0
    """Time between two heartbeats."""
    dead_after_s: Positive = 3.5
    """A process that was not heard of for so long is dead."""
    window_bytes: Annotated[int, Meta(ge=4096)] = MIB
    """Frames that a sender may have under way to this process before it is granted more."""

    def __post_init__(self) -> None:
        """Refuses combinations that cannot work."""
        if self.dead_after_s < 2 * self.beat_interval_s:
            raise ValueError("dead_after_s must be at least twice beat_interval_s, or one late beat kills a process")
        if self.nats_creds_file and (self.nats_user or self.nats_password_file):
            raise ValueError("nats_creds_file excludes nats_user and nats_password_file")


class ServiceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all four services share."""

    id: str | None = None
    """First part of this process's name, before a random one; default: the host's name."""
    bus: BusConfig = field(default_factory=BusConfig)
    log_format: Literal["auto", "json", "console"] = "auto"
    """JSON lines, or text for people; `auto`: text on a terminal, JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages to log."""
    drain_s: Seconds = 30.0
    """How long turns may still run after SIGTERM."""


class FrontendConfig(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """HTTP: addresses, limits, and which APIs are there."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on; 0: any free one."""
    tls_cert_file: str | None = None
    """PEM file with the server's certificate and the chain behind it; with it HTTPS is served. Read again on change."""
    tls_key_file: str | None = None
    """PEM file with the certificate's private key; default: it is in `tls_cert_file`."""
    tls_client_ca_file: str | None = None
    """PEM file of authorities; only clients with a certificate of theirs are served (health checks need none)."""
    cors_origins: list[str] = []
    """Origins whose pages may use the server from a browser, as `https://app.example`; `*`: all."""
    api_keys_file: str | None = None
    """File of accepted keys, `name:` and the key's SHA-256 a line (docs/operations.md); read again on change. None:
    every key is accepted."""
    key_concurrency: Count | None = None
    """Requests of one key that are answered at once, where the key file does not say; without keys: of all callers."""
    key_requests_per_minute: Count | None = None
    """Requests of one key in a minute, where the key file does not say; without keys: of all callers."""
    key_tokens_per_minute: Count | None = None
    """Tokens of one key in a minute, where the key file does not say; without keys: of all callers."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 64 * MIB
    """Largest request body; more is answered with 413."""
    max_messages: Count = 100_000
    """Most messages of a conversation."""
    max_tools: Count = 1024
    """Most tools of a request."""
    max_media: Count = 1024
    """Most images and documents of a request."""
    max_nesting: Count = 64
    """Deepest nesting of objects and lists in a tool's schema."""
    head_timeout_s: Positive = 30.0
    """A connection that has not sent its first request's headers after so long is closed."""
    body_timeout_s: Positive = 120.0
    """Longest time for a request's body to arrive."""
    ping_interval_s: Positive = 10.0
    """A stream that is silent for so long gets its API's keep-alive."""
    slow_reader_timeout_s: Positive = 30.0
    """A turn whose client takes nothing for so long is cancelled."""
    max_buffered_bytes: Annotated[int, Meta(ge=65536)] = 8 * MIB
    """A turn whose client leaves so much unread is cancelled."""
    enable_anthropic_api: bool = True
    """Serve the Messages API."""
    enable_streaming_tool_dispatch: bool = False
    """Send a `tool_call_dispatch` event with each complete tool call, whether the client asks for it or not."""
    enable_streaming_reasoning_dispatch: bool = False
    """Send a `reasoning_dispatch` event with each finished reasoning block, whether the client asks for it or not."""
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = "reasoning_content"
    """Field of a Chat Completions message that holds its reasoning, where the client does not say."""
    reasoning_details: bool = False
    """Send sealed reasoning in Chat Completions, in `reasoning_details`, whether the client asks for it or not."""
    request_timeout_s: Positive = 3600.0
    """Longest time from a request to the end of its answer."""
    default_model: str | None = None
    """Model that serves requests which name none."""
    accept_any_model: bool = False
    """Serve unknown model names with the default model, or with the only one there is."""
    codex_models_file: str | None = None
    """File with Codex' own model catalogue (`codex debug models --bundled`), for profiles to give to served models."""
    codex_profiles: dict[str, str] = {}
    """Served name to the slug of its profile in `codex_models_file`, `*` for all names: JSON, or a JSON, YAML or TOML
    file. A name that is a slug itself needs no entry; the others have Turnwire's profile."""
    accept_timeout_s: Positive = 2.0
    """A preprocessor that has not taken a turn within this time is not asked further."""
    attempts: Count = 3
    """How often a turn is started anew when a process on its way dies."""
    seal_key_file: str | None = None
    """File with the key that seals compacted conversations; None: derived from the model's name."""
    response_store: Literal["memory", "shared"] = "memory"
    """Where Responses are kept: in this process, or also in JetStream, for several frontends and across restarts."""
    response_store_ttl_s: Positive = 24 * 3600.0
    """A stored response is forgotten after so long."""
    response_store_entries: Count = 20_000
    """Stored responses in this process; over it, those that were not asked for the longest are forgotten."""
    response_store_bytes: Annotated[int, Meta(ge=MIB)] = 256 * MIB
    """Bytes of stored responses in this process and, `shared`, in JetStream."""
    max_background: Count = 64
    """Background responses at work at once; as many again may wait for their turn."""
    enable_responses_websocket: bool = True
    """Serve Responses over WebSocket; false: the upgrade is answered with 426, and clients go on over HTTP."""
    max_websockets: Count = 1024
    """WebSocket connections at once."""

    def __post_init__(self) -> None:
        """Refuses combinations that cannot work."""
        if self.tls_cert_file is None and (self.tls_key_file or self.tls_client_ca_file):
            raise ValueError("tls_key_file and tls_client_ca_file need a tls_cert_file")


class StageConfig(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the services without HTTP of their own share: the model, and a port for metrics and health."""

    model: str
    """Directory or hub id of the model: its tokenizer, template and, for engines that need them, weights."""
    served_model_name: str | None = None
    """Name under which clients know the model, or several with commas between them; default: the hub id, or the
    directory's own name."""
    metrics_host: str = "127.0.0.1"
    """Address for /metrics, /live and /ready."""
    metrics_port: Port | None = None
    """Port for /metrics, /live and /ready; default: none."""

    @property
    def model_name(self) -> str:
        """The model's name on the bus and for clients: the one given, else the hub id as it is, or the directory's."""
        if names := self._names:
            return names[0]
        path = Path(self.model)
        if path.is_dir() or self.model.startswith(("/", "./", "../", "~")):
            return path.expanduser().resolve().name
        return self.model

    @property
    def other_names(self) -> list[str]:
        """The names after the first one in `served_model_name`."""
        return self._names[1:]

    @property
    def _names(self) -> list[str]:
        return [name for part in (self.served_model_name or "").split(",") if (name := part.strip())]


class PreprocessorConfig(StageConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From a conversation to a prompt."""

    aliases: list[str] = []
    """Further names under which clients may ask for the model."""
    chat_template: str | None = None
    """File with a chat template to use instead of the model's own."""
    family: str = "auto"
    """Parser family of the model's output; `auto`: told from its template and configuration."""
    tool_call_parser: str | None = None
    """Tool-call format by the name that vLLM, SGLang or Dynamo has for it; goes before `family`."""
    reasoning_parser: str | None = None
    """Reasoning format by the name that vLLM, SGLang or Dynamo has for it; goes before `family`."""
    strip_anthropic_preamble: bool = True
    """Drop Claude Code's billing block, which changes per conversation and breaks every prefix cache."""
    max_model_len: Count | None = None
    """Context window in tokens, if smaller than the worker's."""
    max_output_tokens: Count | None = None
    """Longest answer in tokens; None: whatever the context window leaves."""
    threads: Count = 4
    """Threads that render and tokenize."""
    tokenizer: Literal["auto", "fastokens", "tokenizers"] = "auto"
    """What encodes prompts; `auto`: fastokens where it proves equal on this model's tokenizer, else tokenizers."""
    prompt_cache_mb: Count = 64
    """Memory for what is known of earlier prompts, in MiB: that much for each store (docs/prompts.md). 64 hold what
    fifty sessions of 60,000 tokens need."""
    router_overlap_weight: Annotated[float, Meta(ge=0)] = 1.0
    """What a prompt token costs that a worker would have to prefill; 0: the KV caches do not count."""
    router_load_tokens: Annotated[float, Meta(ge=0)] = 16384.0
    """What a worker costs all of whose slots are taken, in prompt tokens to prefill."""
    trust_remote_code: bool = False
    """Run Python code from the model directory."""
    template_kwargs: dict[str, Any] = {}
    """Chat template variables for every request: JSON, or a JSON, YAML or TOML file."""
    seal_key_file: str | None = None
    """File with the key that seals reasoning; the parser needs the same. None: derived from the model's name."""
    enable_ledger: bool = True
    """Put a session's earlier turns into its prompts as their own tokens (docs/ledger.md)."""
    ledger_mb: Count = 64
    """Memory for turns, in MiB, and as much again for whole prompts."""
    ledger_ttl_s: Positive = 24 * 3600.0
    """A turn that nobody wrote again is forgotten by JetStream after so long; the parser needs the same."""
    ledger_store_mb: Annotated[int, Meta(ge=0)] = 512
    """Room for turns in JetStream, in MiB, for all models together; the parser needs the same. 0: memory only."""


class WorkerConfig(StageConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine."""

    engine: Literal["script", "transformers", "trtllm"] = "script"
    """`script` plays written output and needs no weights."""
    slots: Count = 256
    """Turns that decode at once."""
    queue_limit: Annotated[int, Meta(ge=0)] = 1024
    """Turns that may wait for a slot."""
    max_model_len: Count | None = None
    """Context window in tokens; default: the model's own."""
    family: str = "auto"
    """Family in which the script engine's agent writes; `auto`: told from the model's template."""
    script_dir: str | None = None
    """Directory of written outputs for the script engine, instead of its agent."""
    script_mode: Literal["agent", "request"] = "agent"
    """`agent`: play `script_dir` or the built-in agent; `request`: a request may bring its own output (tests)."""
    token_delay_ms: Annotated[float, Meta(ge=0)] = 5.0
    """The script engine's time between two tokens of a turn."""
    prefill_tokens_per_s: Annotated[float, Meta(ge=0)] = 0.0
    """The script engine's prefill speed; 0: at once."""
    device: str = "auto"
    """Where the transformers engine runs: `auto`, `cpu`, `cuda`, `cuda:1`, `mps` …"""
    dtype: str = "auto"
    """Number type of the weights: `auto` (the checkpoint's own), `bfloat16`, `float16`, `float32`."""
    kv_tokens: Count | None = None
    """Capacity of the KV cache in tokens; default: what the engine finds room for."""
    engine_args: dict[str, Any] | None = None
    """The engine's own options: JSON, or a JSON, YAML or TOML file."""
    trust_remote_code: bool = False
    """Run Python code from the model directory."""
    watchdog_s: Positive = 120.0
    """An engine with work that says nothing for so long is dead."""


class ParserConfig(StageConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From tokens to events."""

    trust_remote_code: bool = False
    """Run Python code from the model directory."""
    seal_key_file: str | None = None
    """File with the key that seals reasoning; the preprocessor needs the same. None: derived from the model's name."""
    ledger_ttl_s: Positive = 24 * 3600.0
    """A turn that nobody wrote again is forgotten by JetStream after so long; the preprocessor needs the same."""
    ledger_store_mb: Annotated[int, Meta(ge=0)] = 512
    """Room for turns in JetStream, in MiB, for all models together; the preprocessor needs the same. 0: memory only."""


class UpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`turnwire up`: how many of each stage to start on this machine, and where to keep their state."""

    frontends: Count = 1
    """Frontends to start; the second and later ones listen on free ports."""
    preprocessors: Count = 1
    """Preprocessors to start."""
    workers: Count = 1
    """Workers to start; each loads the model."""
    parsers: Count = 1
    """Parsers to start."""
    state_dir: str | None = None
    """Where the demo model and the sealing key are kept; default: `turnwire` in the user's state directory."""
    ready_file: str | None = None
    """File that is written, whole, when the first request can be served: {"url": …}."""


AnyConfig: TypeAlias = FrontendConfig | PreprocessorConfig | WorkerConfig | ParserConfig

STAGES: Mapping[str, type[ServiceConfig]] = {
    "frontend": FrontendConfig,
    "preprocessor": PreprocessorConfig,
    "worker": WorkerConfig,
    "parser": ParserConfig,
}
TABLES: Mapping[str, type[Struct]] = {**STAGES, "bus": BusConfig, "up": UpConfig}
"""The tables of a configuration file."""


def read_secret(path: str) -> str:
    """A secret's text without surrounding white space. Raises ValueError, naming the file, if there is none."""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the secret in {path}: {error}") from error
    if not secret:
        raise ValueError(f"the secret file {path} is empty")
    return secret
