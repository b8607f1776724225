"""Reads the properties of a server of SGLang, and its signs of life: `GET /server_info` and
`/v1/loads` of 0.5.20 to 0.5.23 (`srt/entrypoints/http_server.py`)."""

from typing import Any

from msgspec import Struct

from schemas.control import VISION
from schemas.errors import Invalid
from services.worker.engines.remote.dialect import Pulse, ServerFacts
from services.worker.engines.remote.http import HttpRefusal, ServerHttp
from services.worker.engines.remote.listed_models import event_host, list_adapters

OLDEST = (0, 5, 20)
LEAST_BLOCK = 16
"""SGLang often has pages of one token. They are joined to blocks of at least as many tokens,
because an index of single tokens would be large."""
_WILDCARDS = ("*", "0.0.0.0", "::")


class _KvEvents(Struct):
    publisher: str
    endpoint_host: str
    endpoint_port_base: int
    dp_size: int


class _Scheduler(Struct):
    effective_max_running_requests_per_dp: int


class ServerInfo(Struct):
    """`GET /server_info`: the arguments of the server, as they were resolved, and more."""

    version: str
    model_path: str
    served_model_name: str
    page_size: int
    max_req_input_len: int
    max_total_num_tokens: int
    internal_states: list[_Scheduler]
    startup_time: dict[str, Any] | None = None
    kv_events: _KvEvents | None = None
    dcp_size: int = 1
    is_embedding: bool = False
    skip_tokenizer_init: bool = False
    grammar_backend: str | None = None
    disable_radix_cache: bool = False
    disaggregation_mode: str = "null"
    enable_deterministic_inference: bool = False
    enable_priority_scheduling: bool = False
    enable_return_routed_experts: bool = False
    schedule_low_priority_values_first: bool = False
    speculative_algorithm: str | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_steps: int | None = None
    speculative_num_draft_tokens: int | None = None

    @property
    def startup_s(self) -> float:
        """How long the start took, which no second start takes to the microsecond."""
        parts = self.startup_time or {}
        # The first is missing with several tokenizer processes.
        return sum(float(parts.get(name, 0.0)) for name in ("tokenizer_e2e", "scheduler_e2e"))

    @property
    def page(self) -> int:
        """Tokens in a page of the cache, over all ranks that share one."""
        return self.page_size * self.dcp_size

    @property
    def block_tokens(self) -> int:
        """Tokens in a block: the whole pages that have `LEAST_BLOCK` together."""
        return self.page * -(-LEAST_BLOCK // self.page)

    @property
    def window(self) -> int:
        """The most tokens that prompt and output can have together. A turn beyond it is refused, or
        ends too early (`init_req_max_new_tokens`, `max_new_tokens_for_memory`)."""
        drafts = (self.speculative_eagle_topk or 0) * (self.speculative_num_steps or 0)
        reserved = max(drafts, self.speculative_num_draft_tokens or 0)
        held = self.max_total_num_tokens - 2 * self.page
        return min(self.max_req_input_len - reserved, held)


class _Load(Struct):
    token_usage: float = 0.0
    total_prefill_uncached_tokens: int = 0
    total_prefill_busy_us: int = 0


class _Loads(Struct):
    loads: list[_Load]


async def read_info(http: ServerHttp) -> ServerInfo:
    """Reads the server's arguments. Raises Unreachable, HttpRefusal."""
    info: ServerInfo = await http.json("/server_info", kind=ServerInfo)
    return info


async def read_properties(http: ServerHttp) -> ServerFacts:
    """Reads the properties of the server. Raises as `Dialect.describe`."""
    try:
        info = await read_info(http)
    except HttpRefusal as refusal:
        if refusal.status in (200, 404, 405):
            what = f"{http.url} is not an SGLang server of 0.5.20 or newer ({refusal})"
            raise Invalid(what, param="engine_url") from refusal
        raise
    _require_interface(http.url, info)
    lacking = _lacking(info)
    return ServerFacts(
        version=info.version,
        model=info.served_model_name,
        root=info.model_path,
        max_model_len=info.window,
        block_tokens=None if info.disable_radix_cache else info.block_tokens,
        kv_tokens=info.max_total_num_tokens,
        slots=sum(one.effective_max_running_requests_per_dp for one in info.internal_states),
        kv_endpoint=None if "kv_events" in lacking else _kv_endpoint(http.url, info),
        lacking=lacking,
        experts=info.enable_return_routed_experts,
    )


async def read_pulse(http: ServerHttp) -> Pulse:
    """Requests a sign of life. Raises Unreachable, HttpRefusal."""
    # The scheduler answers the first itself. `/health` would decode a token each time.
    info = await read_info(http)
    answer: _Loads = await http.json("/v1/loads?include=core", kind=_Loads)
    loads = answer.loads
    if len(loads) != len(info.internal_states):
        raise HttpRefusal(200, "the load of a rank is missing")
    return Pulse(
        started=info.startup_s,
        steps=sum(
            load.total_prefill_uncached_tokens + load.total_prefill_busy_us for load in loads
        ),
        kv_used=max((min(1.0, load.token_usage) for load in loads), default=None),
        adapters=await list_adapters(http),
    )


def _lacking(info: ServerInfo) -> dict[str, str]:
    """The features that the settings of a server exclude, and why."""
    lacks = {
        "retention": "SGLang takes no retention of prompts",
        VISION: "SGLang decodes a prompt with images to text, and encodes that again",
    }
    if not info.enable_deterministic_inference:
        lacks["seed"] = "needs `--enable-deterministic-inference`: SGLang ignores it otherwise"
    if not info.enable_priority_scheduling:
        lacks["priority"] = "needs `--enable-priority-scheduling`"
    elif info.schedule_low_priority_values_first:
        lacks["priority"] = "`--schedule-low-priority-values-first` is set"
    if info.grammar_backend != "llguidance":
        lacks["grammar"] = "needs `--grammar-backend llguidance`"
    if info.grammar_backend == "none":
        lacks["guided"] = "`--grammar-backend none` is set"
    if info.skip_tokenizer_init:
        lacks |= dict.fromkeys(
            ("guided", "grammar", "min_tokens"), "`--skip-tokenizer-init` is set"
        )
    reason = _lacks_events(info)
    if reason is not None:
        lacks["kv_events"] = reason
    if info.disable_radix_cache:
        lacks |= dict.fromkeys(("prefix_cache", "kv_events"), "prefix caching is off")
    return lacks


def _lacks_events(info: ServerInfo) -> str | None:
    """Why a server has no KV events that can be used; None: it has."""
    events = info.kv_events
    if events is None or events.publisher != "zmq":
        return 'needs `--kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557"}\'`'
    if events.endpoint_host not in _WILDCARDS:
        return "needs an endpoint of all addresses in `--kv-events-config`, such as tcp://*:5557"
    if events.dp_size != 1:
        return "it has several data-parallel ranks, each with a cache of its own"
    if info.block_tokens != info.page:
        return f"needs `--page-size {LEAST_BLOCK}` or more: it has {info.page}"
    if info.speculative_algorithm is not None:
        return "with speculative decoding its blocks may hold pairs of tokens"
    return None


def _kv_endpoint(url: str, info: ServerInfo) -> str:
    assert info.kv_events is not None
    return f"tcp://{event_host(url)}:{info.kv_events.endpoint_port_base}"


def _require_interface(url: str, info: ServerInfo) -> None:
    """Raises Invalid if the server is too old, or decodes no turns of its own."""
    release = tuple(int(part) for part in info.version.split(".")[:3] if part.isdecimal())
    if release < OLDEST:
        raise Invalid(f"{url} is SGLang {info.version}; 0.5.20 or newer is needed")
    if info.is_embedding:
        raise Invalid(f"{url} serves embeddings", param="engine_url")
    if info.disaggregation_mode != "null":
        raise Invalid(
            f"{url} is one side ({info.disaggregation_mode}) of a split server: a turn needs both",
            param="engine_url",
        )
