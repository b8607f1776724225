"""A small `vllm serve` over the engine of `fake_vllm`, as strict as the real one (0.32) in what it
takes.

Sources: `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`, `serving.py`,
`vllm/entrypoints/serve` and `vllm/entrypoints/rl` of 0.32.0.
"""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import msgspec
from aiohttp import web

from tests.worker.fake_server import FakeServer, running
from tests.worker.fake_vllm import (
    BLOCK,
    VOCAB,
    AsyncEngineArgs,
    AsyncLLM,
    EngineDeadError,
    KVEventsConfig,
    RequestOutputKind,
    SamplingParams,
    VLLMClientError,
)
from tests.worker.fake_weights import FakeWeights, Labels

MODEL = "served"
FIELDS = frozenset(
    [
        "request_id",
        "token_ids",
        "sampling_params",
        "model",
        "stream",
        "stream_options",
        "cache_salt",
        "priority",
    ]
)
"""Those that a test may send; the release knows more."""


class FakeVllmServer(FakeServer):
    def __init__(self, **options: Any) -> None:
        self.scale_out = options.pop("scale_out", True)
        self.reports_cached = options.pop("reports_cached", True)
        self.dev_mode = options.pop("dev_mode", True)
        """VLLM_SERVER_DEV_MODE=1."""
        self.experts: bytes | None = options.pop("experts", None)
        """With --enable-return-routed-experts: the array of every turn."""
        key, tls = options.pop("key", None), options.pop("tls", None)
        super().__init__(key, tls, options.pop("adapters", ()))
        self.vocabulary: int = options.pop("vocabulary", VOCAB)
        self.started = 1.0
        self.steps = 7.0
        self.steps_per_look = 0.0
        """By how much `steps` grows each time that it is read."""
        self.ignored: set[str] = set()
        """Sampling parameters that have no effect."""
        self.counts = True
        """Without `--disable-log-stats`."""
        self.kv_used = [0.5]
        """The share of the cache in use, for each rank."""
        self.tokenizes = 404, "Not Found"
        """Status and message with which it answers to a text."""
        self.busy_for = ""
        """A field of requests for which it has no room."""
        self.fails_at = ""
        """A field of the sampling at which it fails."""
        arguments: dict[str, Any] = {
            "max_model_len": 4096,
            "max_num_seqs": 4,
            "scheduling_policy": "priority",
        }
        events = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq")
        if options.pop("kv_events", False):
            arguments["kv_events_config"] = events
        self.engine: Any = AsyncLLM(AsyncEngineArgs(model=MODEL, **(arguments | options)), [])
        self.weights = FakeWeights(self.engine)

    def routes(self) -> list[web.RouteDef]:
        dev = [
            web.get("/weight_info", self._weight_info),
            web.get("/is_paused", self._is_paused),
            web.post("/pause", self._pause),
            web.post("/resume", self._resume),
            web.post("/collective_rpc", self._collective_rpc),
            web.post("/reset_prefix_cache", self._reset_prefix_cache),
            web.post("/update_weight_version", self._update_weight_version),
        ]
        return [
            *(dev if self.dev_mode else ()),
            web.get("/version", self._version),
            web.get("/v1/models", self._models),
            web.get("/health", self._health),
            web.get("/metrics", self._metrics),
            web.get("/kv_event_sources", self._kv_event_sources),
            web.post("/tokenize", self._tokenize),
            web.post("/inference/v1/generate", self._generate),
            web.post("/inference/v1/abort_requests", self._abort),
        ]

    def on_kill(self) -> None:
        self.engine.kill()

    async def _version(self, _: web.Request) -> web.Response:
        await self.hang()
        return web.json_response({"version": "0.32.0"})

    async def _models(self, request: web.Request) -> web.Response:
        if not self.is_allowed(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        window = self.engine.vllm_config.model_config.max_model_len
        cards = self.model_cards(MODEL, root="/models/served", max_model_len=window)
        return web.json_response({"object": "list", "data": cards})

    async def _health(self, _: web.Request) -> web.Response:
        await self.hang()
        return web.Response(status=503 if self.engine.dead else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        await self.hang()
        self.steps += self.steps_per_look
        cache = self.engine.vllm_config.cache_config
        labels = {
            "block_size": cache.block_size,
            "num_gpu_blocks": cache.num_gpu_blocks,
            "enable_prefix_caching": cache.enable_prefix_caching,
        }
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        lines = [
            "# HELP process_start_time_seconds Start time of the process.",
            f"process_start_time_seconds {self.started}",
        ]
        if self.counts:
            lines += [
                f"vllm:cache_config_info{{{text}}} 1.0",
                f'vllm:iteration_tokens_total_count{{engine="0"}} {self.steps}',
            ]
            for rank, used in enumerate(self.kv_used):
                lines.append(f'vllm:kv_cache_usage_perc{{engine="{rank}"}} {used}')
        return web.Response(text="\n".join(lines) + "\n")

    async def _tokenize(self, _: web.Request) -> web.Response:
        status, message = self.tokenizes
        if status == 200:
            return web.json_response({"tokens": [8, 9]})
        return _error(status, message)

    async def _kv_event_sources(self, _: web.Request) -> web.Response:
        config = self.engine.args.kv_events_config
        if config is None:
            return web.json_response({})
        return web.json_response({"0": vars(config)})

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.engine.label})

    async def _is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.weights.paused})

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            return _error(400, "1 validation error: Input should be 'abort', 'wait' or 'keep'")
        assert mode != "wait", "a turn may take hours"
        self.weights.paused = True
        self.engine.gate.clear()
        if mode == "abort":
            self.engine.abort_all()
        if request.query.get("clear_cache", "true") == "true":
            self.engine.cache.clear()
        return web.json_response({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self.weights.paused = False
        self.engine.gate.set()
        return web.json_response({"status": "resumed"})

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        if not self.weights.load(body["kwargs"]["weights_path"]):
            return _error(500, "Call to collective_rpc method failed: Worker failed with error …")
        return web.json_response({"results": [None]})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        resets = request.query.get("reset_running_requests") == "true" or not self.engine.running
        if resets:
            self.engine.cache.clear()
        return web.json_response({"success": resets})

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        self.engine.label = (await request.json())["new_version"]
        return web.json_response({"success": True, "new_version": self.engine.label})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted += (await request.json())["request_ids"]
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self.scale_out:
            return _error(403, "Scale-out endpoints are disabled.")
        if not self.is_allowed(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        await self.hang()
        if self.refusals:
            return _error(self.refusals.pop(0), "not now")
        body = await request.json()
        self.requests.append(body)
        if self.busy_for in body:
            return _error(503, "not now")
        if self.fails_at in body.get("sampling_params", {}):
            return _error(500, "Internal server error")
        adapter = self.adapters.get(body.get("model"))
        if adapter is None and body.get("model") not in (None, MODEL):
            return _error(404, f"The model `{body['model']}` does not exist.")
        self.engine.adapters.update(self.adapters.values())
        try:
            sampling = self._check(body)
        except (VLLMClientError, msgspec.ValidationError) as error:
            return _error(400, str(error))
        outputs = self.engine.generate(
            {
                "type": "token",
                "prompt_token_ids": body["token_ids"],
                "cache_salt": body.get("cache_salt"),
            },
            sampling,
            f"generate-tokens-{body['request_id']}",
            lora_request=adapter,
            priority=body.get("priority", 0),
        )
        async with aclosing(outputs):
            return await self.stream(request, self._or_error(self._events(body, outputs)))

    async def _or_error(
        self, events: AsyncIterator[dict[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        try:
            async for event in events:
                yield event
        except EngineDeadError:
            yield {"error": {"message": "EngineCore encountered an issue.", "code": 500}}

    def _check(self, body: dict[str, Any]) -> SamplingParams:
        unknown = body.keys() - FIELDS
        if unknown:
            raise VLLMClientError(f"a test must not send {unknown}")
        if not body.get("token_ids"):
            raise VLLMClientError("token_ids: List should have at least 1 item")
        if max(body["token_ids"]) >= self.vocabulary:
            raise VLLMClientError(f"Token id {max(body['token_ids'])} is out of vocabulary")
        if body.get("priority") and self.engine.args.scheduling_policy != "priority":
            raise VLLMClientError("Got priority but Priority scheduling is not enabled.")
        fields = {
            name: value
            for name, value in body["sampling_params"].items()
            if name not in self.ignored
        }
        sampling = msgspec.convert(fields, SamplingParams, strict=False)
        if (sampling.logprobs or 0) > 20:
            raise VLLMClientError("Requested sample logprobs is greater than max allowed: 20")
        sampling.output_kind = RequestOutputKind.DELTA
        return sampling

    async def _events(self, body: dict[str, Any], outputs: Any) -> AsyncIterator[dict[str, Any]]:
        prompt, total, cached = len(body["token_ids"]), 0, 0
        labels = Labels()
        async for output in outputs:
            (out,) = output.outputs
            labels.add(out)
            total += len(out.token_ids)
            cached = output.num_cached_tokens
            choice = {
                "index": 0,
                "logprobs": _logprobs(out),
                "finish_reason": out.finish_reason,
                "stop_reason": out.stop_reason,
                "token_ids": out.token_ids,
                "routed_experts": None,
                "weight_versions": labels.spans if out.finish_reason else None,
            }
            if out.finish_reason and self.experts is not None:
                choice["routed_experts"] = b64encode(self.experts).decode()
            yield {
                "request_id": body["request_id"],
                "choices": [choice],
                "usage": _usage(prompt, total),
            }
        usage = _usage(prompt, total)
        if self.reports_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        yield {"request_id": body["request_id"], "choices": [], "usage": usage}


def fake_vllm_server(**options: Any) -> AbstractAsyncContextManager[FakeVllmServer]:
    """A server that runs."""
    return running(FakeVllmServer(**options))


def _error(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "error", "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _usage(prompt: int, total: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": total, "total_tokens": prompt + total}


def _logprobs(out: Any) -> dict[str, Any] | None:
    if out.logprobs is None:
        return None
    content = []
    for token, row in zip(out.token_ids, out.logprobs, strict=True):
        ranked = [
            {"token_id": other, "logprob": entry.logprob, "rank": rank}
            for rank, (other, entry) in enumerate(row.items(), 1)
        ]
        chosen = next(entry for entry in ranked if entry["token_id"] == token)
        content.append({**chosen, "top_logprobs": ranked})
    return {"content": content}


BLOCK_TOKENS = BLOCK
