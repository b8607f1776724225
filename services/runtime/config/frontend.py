"""Settings of the frontend."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from services.runtime.config.base import FROM_FILE, MIB, Count, Port, Positive, Seconds, also
from services.runtime.config.service import ServiceConfig
from services.runtime.config.stores import ImageStoreConfig, ResponseStoreConfig, RolloutStoreConfig


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
    """Most names of keys that metrics show, to everyone who reaches the port, since /metrics needs
    no key; further ones are counted as `other` (docs/metrics.md)."""
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
    """Most pages of a PDF that are also sent as images, for models that get images; some 2,000
    tokens each."""
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
    """Most attempts at a turn that gets no further because processes die with it."""
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
    """Most tools at the start of a prompt, for requests without a search of tools of their own. The
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
