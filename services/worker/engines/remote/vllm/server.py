"""Reads the properties of a server of vLLM, and its signs of life.

Source: `vllm/entrypoints/serve/instrumentator` of 0.32.0.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from schemas.errors import Invalid
from services.worker.engines.remote.dialect import Pulse, ServerFacts
from services.worker.engines.remote.http import HttpRefusal, ServerHttp
from services.worker.engines.remote.listed_models import (
    ListedModel,
    event_host,
    list_adapters,
    list_models,
)

PATH = "/inference/v1/generate"
NEEDS = "start it with `vllm serve … --enable-scale-out` (0.32 or newer)"
_ANY_HOST = "*"
_SAMPLE = re.compile(r"^([a-z_:]+)(?:\{(.*)\})? ([^ ]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class _Version(Struct):
    version: str


class _KvSource(Struct):
    endpoint: str = ""
    enable_kv_cache_events: bool = False
    publisher: str | None = None


async def read_properties(http: ServerHttp) -> ServerFacts:
    """Reads the properties of the server. Raises as `Dialect.describe`."""
    version: _Version = await http.json("/version", kind=_Version)
    await _require_interface(http)
    base = await _base_model(http)
    metrics = await http.text("/metrics")
    cache = _labels(metrics, "vllm:cache_config_info")
    block = _number(cache, "effective_attention_block_size") or _number(cache, "block_size")
    endpoint = await _kv_endpoint(http)
    lacking = _lacking(cache, endpoint)
    caches = "prefix_cache" not in lacking
    kv_tokens = _number(cache, "kv_cache_size_tokens")
    if not kv_tokens:
        kv_tokens = (_number(cache, "num_gpu_blocks") or 0) * (block or 0)
    return ServerFacts(
        version=version.version,
        model=base.id,
        root=base.root or "",
        max_model_len=base.max_model_len,
        block_tokens=block if caches else None,
        kv_tokens=kv_tokens or None,
        kv_endpoint=endpoint if caches else None,
        lacking=lacking,
        recomputed_blocks=int("vllm:spec_decode_num_drafts" in metrics),
    )


async def read_pulse(http: ServerHttp) -> Pulse:
    """Requests a sign of life. Raises Unreachable, HttpRefusal."""
    await http.text("/health")
    metrics = await http.text("/metrics")
    return Pulse(
        started=_sum(metrics, "process_start_time_seconds"),
        steps=_sum(metrics, "vllm:iteration_tokens_total_count"),
        kv_used=_mean(metrics, "vllm:kv_cache_usage_perc"),
        adapters=await list_adapters(http),
    )


async def _require_interface(http: ServerHttp) -> None:
    """Raises Invalid if the server has no token interface, HttpRefusal if it refuses every
    request."""
    try:
        await http.post(PATH, {})
    except HttpRefusal as refusal:
        if refusal.status in (403, 404, 405):
            raise Invalid(f"{http.url} has no token interface ({refusal}): {NEEDS}") from refusal
        if refusal.status not in (400, 422):  # those of an empty request
            raise


async def _base_model(http: ServerHttp) -> ListedModel:
    """The base model. All others are its adapters."""
    for model in await list_models(http):
        if model.parent is None:
            return model
    raise HttpRefusal(200, "it serves no model")


async def _kv_endpoint(http: ServerHttp) -> str | None:
    """The address of the server's KV events, as it is reached from here. None: it publishes none;
    it has several ranks, each with a cache of its own; or the address is not its own (vLLM listens
    at one with `*`, and connects to any other: `distributed/kv_events.py`)."""
    try:
        sources: dict[str, _KvSource] = await http.json(
            "/kv_event_sources", kind=dict[str, _KvSource]
        )
    except HttpRefusal:
        return None
    endpoints = [
        source.endpoint
        for source in sources.values()
        if source.enable_kv_cache_events and source.publisher == "zmq"
    ]
    if len(sources) != 1 or len(endpoints) != 1 or _ANY_HOST not in endpoints[0]:
        return None
    return endpoints[0].replace(_ANY_HOST, event_host(http.url))


def _lacking(cache: Mapping[str, str], endpoint: str | None) -> dict[str, str]:
    """The features that the settings of a server exclude, and why. `cache`: its `CacheConfig`, as
    labels; `endpoint`: the address of its KV events."""
    lacking = {"retention": "vLLM evicts the least recently used blocks"}
    if not cache:
        reason = "its metrics are missing: start it without `--disable-log-stats`"
        return lacking | dict.fromkeys(("prefix_cache", "kv_events"), reason)
    if cache.get("enable_prefix_caching") != "True":
        return lacking | dict.fromkeys(("prefix_cache", "kv_events"), "prefix caching is off")
    if endpoint is None:
        lacking["kv_events"] = (
            "needs `--kv-events-config '{\"enable_kv_cache_events\": true}'`, an endpoint "
            "that begins with tcp://*, and one rank"
        )
    return lacking


def _labels(metrics: str, name: str) -> dict[str, str]:
    """The labels of the first sample of a metric."""
    for found, labels, _ in _SAMPLE.findall(metrics):
        if found == name:
            return dict(_LABEL.findall(labels))
    return {}


def _number(labels: Mapping[str, str], name: str) -> int | None:
    """The number in a label; None for a missing label, and for vLLM's own `None`."""
    value = labels.get(name, "")
    return int(value) if value.isdecimal() else None


def _values(metrics: str, name: str) -> list[float]:
    """A metric's samples, one for each rank."""
    return [float(value) for found, _, value in _SAMPLE.findall(metrics) if found == name]


def _sum(metrics: str, name: str) -> float:
    return sum(_values(metrics, name))


def _mean(metrics: str, name: str) -> float | None:
    """The mean of a metric's samples; None: not reported."""
    values = _values(metrics, name)
    return sum(values) / len(values) if values else None
