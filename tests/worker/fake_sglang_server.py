"""A small SGLang server over the engine of `fake_vllm`, as strict as the real one (0.5.23) in what
it takes.

Sources, in the wheel of 0.5.23: `sglang/api/v1/api_types.py` (`GenerateRequest` ignores unknown
fields, `SamplingParams` refuses them: status 400), `sglang/srt/sampling/sampling_params.py`
(`verify`), `managers/tokenizer_manager.py`, `managers/scheduler.py`, `managers/tp_worker.py` and
`utils/common.py` (`build_server_info`). All errors of a request that the types do not show are
events of a stream with the status 200.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import msgspec
from aiohttp import web

from tests.worker.fake_server import Event, FakeServer, running
from tests.worker.fake_vllm import (
    VOCAB,
    AsyncEngineArgs,
    AsyncLLM,
    RequestOutputKind,
    SamplingParams,
)
from tests.worker.fake_weights import FakeWeights, Labels

CONTEXT = 4096
PAGE = 16
KV_TOKENS = 16_384
EOS = 5
FORMS = ("json_schema", "regex", "ebnf", "structural_tag")


class SglangSampling(msgspec.Struct, forbid_unknown_fields=True):
    """`SamplingParams` of the interface."""

    max_new_tokens: int | None = 128
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 1 << 30
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool = False
    logit_bias: dict[str, float] = {}
    sampling_seed: int | None = None

    def verify(self) -> None:
        """Raises ValueError."""
        most = self.max_new_tokens or 0
        rules = {
            "top_p must be in (0, 1]": 0.0 < self.top_p <= 1.0,
            "min_p must be in [0, 1]": 0.0 <= self.min_p <= 1.0,
            "top_k must be -1 (disable) or at least 1": self.top_k == -1 or self.top_k >= 1,
            "frequency_penalty must be in [-2, 2]": -2 <= self.frequency_penalty <= 2,
            "presence_penalty must be in [-2, 2]": -2 <= self.presence_penalty <= 2,
            "repetition_penalty must be in (0, 2]": 0 < self.repetition_penalty <= 2,
            "min_new_tokens must be in [0, max_new_tokens]": 0 <= self.min_new_tokens <= most,
            f"logit_bias must has keys in [0, {VOCAB - 1}]": all(
                0 <= int(token) < VOCAB for token in self.logit_bias
            ),
            "Only one of json_schema, regex, ebnf, or structural_tag can be set": self.forms <= 1,
        }
        for rule, holds in rules.items():
            if not holds:
                raise ValueError(rule)

    @property
    def forms(self) -> int:
        return sum(bool(getattr(self, name)) for name in FORMS)


class GenerateBody(msgspec.Struct):
    """`GenerateRequest`, which ignores unknown fields."""

    rid: str
    input_ids: list[int]
    sampling_params: SglangSampling
    stream: bool = False
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    lora_path: str | None = None
    return_routed_experts: bool = False


class FakeSglangServer(FakeServer):
    """`options`: arguments of the server under the names of `/server_info`, and of the fake."""

    def __init__(self, **options: Any) -> None:
        super().__init__(options.pop("key", None), adapters=options.pop("adapters", ()))
        self.honours_salts = options.pop("honours_salts", True)
        self.original_logprobs = options.pop("original_logprobs", True)
        """SGLANG_RETURN_ORIGINAL_LOGPROB."""
        self.experts: bytes = options.pop("experts", b"")
        """The array of every turn, with `enable_return_routed_experts`."""
        self.started = 12.5
        self.full = 0
        """How many of the next requests find the queue full."""
        self.info: dict[str, Any] = {
            "version": "0.5.23",
            "model_path": "/models/served",
            "served_model_name": "served",
            "page_size": PAGE,
            "incremental_streaming_output": False,
            "skip_tokenizer_init": False,
            "grammar_backend": "llguidance",
            "enable_priority_scheduling": True,
            "enable_deterministic_inference": True,
            "max_req_input_len": min(CONTEXT, KV_TOKENS) - 6,
            "max_total_num_tokens": KV_TOKENS,
            "kv_events": None,
            "frontend": "python",
            **options,
        }
        self.engine = AsyncLLM(AsyncEngineArgs(model="served", max_model_len=CONTEXT * 2), [])
        self.engine.args.max_num_seqs = 4
        self.engine.args.scheduling_policy = "priority"
        self.weights = FakeWeights(self.engine)
        self._open: dict[str, bool] = {}
        """Requests by id, and whether each is aborted."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/server_info", self._server_info),
            web.get("/v1/loads", self._loads),
            web.get("/v1/models", self._models),
            web.post("/generate", self._generate),
            web.post("/abort_request", self._abort),
            web.get("/model_info", self._model_info),
            web.get("/ready", self._ready),
            web.post("/pause_generation", self._pause),
            web.post("/continue_generation", self._continue),
            web.post("/update_weights_from_disk", self._update_from_disk),
            web.post("/flush_cache", self._flush_cache),
        ]

    def on_kill(self) -> None:
        self.engine.kill()

    async def _server_info(self, request: web.Request) -> web.Response:
        await self.hang()
        if not self.is_allowed(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        scheduler = {"effective_max_running_requests_per_dp": 4, "last_gen_throughput": 0.0}
        startup = {"scheduler_e2e": 9.0, "tokenizer_e2e": self.started}
        return web.json_response(
            {**self.info, "internal_states": [scheduler], "startup_time": startup}
        )

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.model_cards("served")})

    async def _loads(self, _: web.Request) -> web.Response:
        load = {"dp_rank": 0, "token_usage": 0.5, "total_prefill_uncached_tokens": 7}
        return web.json_response({"version": self.info["version"], "loads": [load]})

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborted.append(rid)
        self._abort_by_id(rid)
        return web.Response()

    async def _model_info(self, _: web.Request) -> web.Response:
        await self.hang()
        info = {"model_path": self.info["model_path"], "weight_version": self.engine.label}
        return web.json_response(info)

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.weights.paused else 200)

    async def _pause(self, request: web.Request) -> web.Response:
        mode = (await request.json()).get("mode", "abort")
        assert mode in ("abort", "retract"), "in place, turns would keep the KV of old weights"
        self.weights.paused = True
        if mode == "retract":
            self.engine.gate.clear()
        while mode == "abort" and self._open:
            self._open = dict.fromkeys(self._open, True)
            await asyncio.sleep(0.01)
        message = {"message": "Generation paused successfully.", "status": "ok"}
        return web.json_response(message)

    async def _continue(self, request: web.Request) -> web.Response:
        await request.json()
        self.weights.paused = False
        self.engine.gate.set()
        message = {"message": "Generation continued successfully.", "status": "ok"}
        return web.json_response(message)

    async def _update_from_disk(self, request: web.Request) -> web.Response:
        body = await request.json()
        while not self.weights.paused and self._open:
            await asyncio.sleep(0.01)  # the writer's lock
        if not self.weights.load(body["model_path"]):
            message = "Failed to get weights iterator: there are none."
            if self.weights.half_loads:
                message = "Failed to update weights: oh.\nRolling back to original weights."
            return web.json_response({"success": False, "message": message}, status=400)
        self.engine.label = body["weight_version"]
        if body.get("flush_cache", True):
            self.engine.cache.clear()
        self.info |= dict.fromkeys(("model_path", "served_model_name"), body["model_path"])
        message = "Succeeded to update model weights."
        return web.json_response({"success": True, "message": message, "num_paused_requests": 0})

    async def _flush_cache(self, request: web.Request) -> web.Response:
        """Paused, waiting requests do not count (`is_fully_idle`)."""
        if self._open and not self.weights.paused:
            return web.Response(status=400, text="Flush cache failed.")
        self.engine.cache.clear()
        return web.Response(text="Cache flushed.")

    def _abort_by_id(self, rid: str) -> None:
        """The tokenizer manager compares whole ids, but the scheduler their beginnings."""
        if rid in self._open:
            self._open |= {other: True for other in self._open if other.startswith(rid)}

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        await self.hang()
        if not self.is_allowed(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if self.refusals:
            error = {"object": "error", "message": "not now", "code": self.refusals[0]}
            return web.json_response(error, status=self.refusals.pop(0))
        document = await request.json()
        self.requests.append(document)
        try:
            body = msgspec.convert(document, GenerateBody)
        except msgspec.ValidationError as error:
            return web.json_response({"error": str(error)}, status=400)
        assert body.stream, "the adapter reads streams only"
        while self.weights.paused:
            await asyncio.sleep(0.01)
        async with aclosing(self._events(body)) as events:
            return await self.stream(request, events)

    async def _events(self, body: GenerateBody) -> AsyncGenerator[Event, None]:
        try:
            self._check(body)
        except ValueError as error:
            yield {"error": {"message": str(error), "code": 400, "retryable": False}}
            return
        self._open[body.rid] = False
        try:
            async for event in self._decode(body):
                yield event
        except BaseException:
            self._abort_by_id(body.rid)  # the connection was closed
            raise
        finally:
            del self._open[body.rid]

    def _check(self, body: GenerateBody) -> None:
        """Raises ValueError."""
        sampling = body.sampling_params
        if body.rid in self._open:
            raise ValueError(f"Duplicate request ID detected: {body.rid}")
        if not body.input_ids:
            raise ValueError("input_ids cannot be empty.")
        if body.lora_path and body.lora_path not in self.adapters:
            raise ValueError(f"Got LoRA adapter that has never been loaded: {body.lora_path}")
        if len(body.input_ids) + (sampling.max_new_tokens or 0) > CONTEXT:
            raise ValueError("Requested token count exceeds the model's maximum context length")
        sampling.verify()
        if self.info["skip_tokenizer_init"] and sampling.min_new_tokens:
            raise ValueError("min_new_tokens is unavailable when skip_tokenizer_init=True")
        if max(body.input_ids) >= VOCAB:
            self.kill()  # no check: the embedding's kernel fails

    def _refusal(self, body: GenerateBody) -> str | None:
        """Why the scheduler aborts a request."""
        sampling, info = body.sampling_params, self.info
        if len(body.input_ids) >= info["max_req_input_len"]:
            return "Input length exceeds the maximum allowed length"
        if sampling.forms and (info["skip_tokenizer_init"] or info["grammar_backend"] == "none"):
            return "Grammar-based generation is not supported"
        if sampling.ebnf and info["grammar_backend"] != "llguidance":
            return "Failed to compile ebnf grammar"
        return None

    async def _decode(self, body: GenerateBody) -> AsyncGenerator[Event, None]:
        if self.full:
            self.full -= 1
            # As `_handle_abort_req`: without counts of the prompt.
            full = _abort("The request queue is full.", 503)
            meta = {"id": body.rid, "finish_reason": full, "completion_tokens": 0}
            yield {"output_ids": [], "meta_info": meta}
            return
        refusal = self._refusal(body)
        if refusal is not None:
            # A refused request has a prompt of one token.
            yield {"output_ids": [], "meta_info": _meta(body, 1, [], 0, _abort(refusal, 400))}
            return
        salt = body.cache_salt if self.honours_salts else None
        prompt = {"type": "token", "prompt_token_ids": body.input_ids, "cache_salt": salt}
        priority = body.priority if self.info["enable_priority_scheduling"] else None
        adapter = self.adapters[body.lora_path] if body.lora_path else None
        self.engine.adapters.update(self.adapters.values())
        outputs = self.engine.generate(
            prompt,
            self._engine_sampling(body),
            body.rid,
            lora_request=adapter,
            priority=-(priority or 0),
        )
        ids: list[int] = []
        rows: list[list[Any]] = []
        labels = Labels()
        async with aclosing(outputs):
            async for output in outputs:
                if self._open[body.rid]:
                    yield self._event(body, ids, rows, 0, 0, _abort("Aborted", None))
                    return
                (out,) = output.outputs
                labels.add(out)
                since = len(ids)
                ids += out.token_ids
                rows += _logprobs(out, self._scale(body.sampling_params))
                finish = self._finish(out.finish_reason, ids)
                event = self._event(body, ids, rows, since, output.num_cached_tokens, finish)
                event["meta_info"]["weight_version"] = self.engine.label
                if finish is not None:
                    event["meta_info"]["weight_versions"] = labels.spans
                    if body.return_routed_experts and self.info.get("enable_return_routed_experts"):
                        event["meta_info"]["routed_experts"] = b64encode(self.experts).decode()
                yield event

    def _engine_sampling(self, body: GenerateBody) -> SamplingParams:
        asked = body.sampling_params
        room = self.info["max_req_input_len"] + 4 - len(body.input_ids)
        stops = [] if asked.ignore_eos else [*(asked.stop_token_ids or []), EOS]
        return SamplingParams(
            stop_token_ids=stops,
            ignore_eos=True,
            max_tokens=min(asked.max_new_tokens or 0, room),
            min_tokens=asked.min_new_tokens,
            logprobs=(body.top_logprobs_num or 0) if body.return_logprob else None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            logit_bias={int(token): bias for token, bias in asked.logit_bias.items()} or None,
        )

    def _scale(self, sampling: SglangSampling) -> float:
        """By what log probabilities are divided."""
        is_greedy = sampling.temperature == 0 or sampling.top_k == 1
        return 1.0 if is_greedy or self.original_logprobs else sampling.temperature

    def _finish(self, reason: str | None, ids: list[int]) -> Event | None:
        if reason is None:
            return None
        if reason == "stop":
            return {"type": "stop", "matched": ids[-1]}
        return {"type": "length", "length": len(ids)}

    def _event(
        self,
        body: GenerateBody,
        ids: list[int],
        rows: list[list[Any]],
        since: int,
        cached: int,
        finish: Event | None,
    ) -> Event:
        start = since if self.info["incremental_streaming_output"] else 0
        meta = _meta(body, len(body.input_ids), ids, cached, finish)
        if body.return_logprob:
            meta["output_token_logprobs"] = [row[0] for row in rows[start:]]
            if body.top_logprobs_num:
                top = body.top_logprobs_num
                meta["output_top_logprobs"] = [sorted(row)[: -top - 1 : -1] for row in rows[start:]]
        event: Event = {"output_ids": ids[start:], "meta_info": meta}
        if not self.info["skip_tokenizer_init"]:
            event["text"] = " ".join(map(str, ids[start:]))
        return event


def fake_sglang_server(**options: Any) -> AbstractAsyncContextManager[FakeSglangServer]:
    """A server that runs."""
    return running(FakeSglangServer(**options))


def _abort(message: str, status: int | None) -> Event:
    return {"type": "abort", "message": message, "status_code": status, "err_type": None}


def _meta(
    body: GenerateBody, prompt: int, ids: list[int], cached: int, finish: Event | None
) -> Event:
    return {
        "id": body.rid,
        "finish_reason": finish,
        "prompt_tokens": prompt,
        "weight_version": "default",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": len(ids),
        "cached_tokens": cached,
    }


def _logprobs(out: Any, scale: float) -> list[list[Any]]:
    """For each new token: [log probability, token, None] of the chosen one, then of the others."""
    if out.logprobs is None:
        return []
    rows = []
    for token, row in zip(out.token_ids, out.logprobs, strict=True):
        entries = [[entry.logprob / scale, other, None] for other, entry in row.items()]
        rows.append(sorted(entries, key=lambda entry: entry[1] != token))
    return rows
