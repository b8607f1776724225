"""The token interface of SGLang (`POST /generate`), of 0.5.20 to 0.5.23.

Read in the wheels of 0.5.20 and 0.5.23, in `sglang/srt`; never run. The places:

- `managers/io_struct.py` (`GenerateReqInput`, which ignores unknown fields) and
  `sampling/sampling_params.py` (which refuses them);
- `managers/schedule_batch.py`: with `ignore_eos` no stop id ends a request, and without it the ids
  of the server's model do, too (`_check_token_based_finish`); a refused request has a prompt of one
  token (`set_finish_with_abort`);
- `managers/scheduler.py`: `/abort_request` ends every request with an id that begins as the one
  named (`abort_request`); an id that is in use is refused;
- `entrypoints/http_server.py`: errors of requests are events of a stream with the status 200;
  a closed connection ends the request;
- `disaggregation/kv_events.py`: KV events are vLLM's, with the salt in `cache_salt` of each event;
  blocks that are found again are not announced.

LoRA: a request names an adapter in `lora_path`; one that was never loaded is an error with the code
400 (`_resolve_lora_path`). The hashes of blocks differ by adapter, and events of 0.5.23 have its
name.
"""

from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct
from typing_extensions import override

from schemas.errors import EngineFailed, Invalid
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import ModelFacts
from services.worker.engine import EngineDied, EngineRequest
from services.worker.engines.arguments import guided_arguments, integer_priority, limited_sampling
from services.worker.engines.remote.dialect import (
    PAUSE_S,
    UPDATE_S,
    Dialect,
    Pulse,
    ServerFacts,
    ServerRequest,
    WeightsState,
)
from services.worker.engines.remote.engine import RemoteEngine
from services.worker.engines.remote.event_reader import version_of
from services.worker.engines.remote.http import HttpRefusal, ServerHttp
from services.worker.engines.remote.listed_models import TokenizedText
from services.worker.engines.remote.sglang.reader import SglangReader
from services.worker.engines.remote.sglang.server import read_info, read_properties, read_pulse

PATH = "/generate"
_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
"""SGLang's names of fields of `Sampling`, where they differ."""
_NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "n": 1,
}
"""Sent where a request has no value: `--preferred-sampling-params` would replace it."""
_HALF_LOADED = "Rolling back"
"""In the error of an update that has begun: 0.5.23 "rolls back" to the new weights, since it has
noted their path (`model_runner_components/weight_updater.py`)."""


class _ModelInfo(Struct):
    weight_version: str


class SglangDialect(Dialect):
    """A server that `sglang serve` or `python -m sglang.launch_server` has started."""

    name = "sglang-server"
    shares_queued = False
    """Prompts of one batch are looked up before any of them is computed."""
    experts_suffix = ".int32"
    weights_need = "a release of 0.5.20 or newer"

    @override
    async def describe(self, http: ServerHttp) -> ServerFacts:
        return await read_properties(http)

    @override
    async def tokenize(self, http: ServerHttp, server: ServerFacts, text: str) -> list[int] | None:
        info = await read_info(http)
        if info.skip_tokenizer_init:
            return None
        body = {"prompt": text, "add_special_tokens": False}
        answer: TokenizedText = await http.json("/tokenize", body, TokenizedText)
        return answer.tokens

    @override
    def generate(
        self, request: EngineRequest, ids: list[int], server: ServerFacts, model: ModelFacts
    ) -> ServerRequest:
        body: dict[str, Any] = {
            # Another one for each attempt, and no beginning of another one.
            "rid": f"{request.id}-{uuid4().hex}",
            "input_ids": ids,
            "sampling_params": _sampling(request, model),
            "stream": True,
        }
        if request.sampling.logprobs is not None:
            body["return_logprob"] = True
            body["top_logprobs_num"] = request.sampling.logprobs
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if request.adapter:
            body["lora_path"] = request.adapter
        if "priority" not in server.lacking:
            body["priority"] = integer_priority(request)
        if server.experts:
            body["return_routed_experts"] = True
        return ServerRequest(PATH, body)

    @override
    def reader(self, request: EngineRequest, call: ServerRequest) -> SglangReader:
        return SglangReader(call.body["rid"], request.sampling.logprobs)

    @override
    def abort(self, call: ServerRequest) -> ServerRequest | None:
        return ServerRequest("/abort_request", {"rid": call.body["rid"]})

    @override
    async def pulse(self, http: ServerHttp) -> Pulse:
        return await read_pulse(http)

    # -- weights

    @override
    async def weights(self, http: ServerHttp) -> WeightsState | None:
        info: _ModelInfo = await http.json("/model_info", kind=_ModelInfo)
        paused = False
        try:
            await http.text("/ready")
        except HttpRefusal as refusal:
            if refusal.status not in (404, 503):
                raise
            paused = refusal.status == 503
        return WeightsState(version_of(info.weight_version), paused)

    @override
    async def pause(self, http: ServerHttp, *, abort: bool) -> None:
        # In place, turns would go on with the KV blocks of the old weights.
        mode = "abort" if abort else "retract"
        await http.post("/pause_generation", {"mode": mode}, PAUSE_S)

    @override
    async def resume(self, http: ServerHttp) -> None:
        await http.post("/continue_generation", {}, PAUSE_S)

    @override
    async def update_weights(self, http: ServerHttp, source: str, version: int) -> None:
        # If it cannot be flushed, as with a grammar that is being compiled, the update would fail
        # after the weights were loaded, with the old label.
        body = {"model_path": source, "weight_version": str(version), "flush_cache": False}
        try:
            await http.post("/update_weights_from_disk", body, UPDATE_S)
        except HttpRefusal as refusal:
            message = f"SGLang has not loaded the weights of {source}: {refusal}"
            if refusal.status == 400 and _HALF_LOADED not in str(refusal):
                raise EngineFailed(message) from refusal
            raise EngineDied(message) from refusal
        with suppress(HttpRefusal):
            await http.post("/flush_cache", {}, PAUSE_S)


class SglangServer(RemoteEngine):
    """The engine `sglang-server`."""

    @staticmethod
    @override
    def make_dialect(config: WorkerConfig) -> Dialect:
        return SglangDialect()


def _sampling(request: EngineRequest, model: ModelFacts) -> dict[str, Any]:
    """SGLang's `sampling_params`. Raises Invalid for stop ids beside `ignore_eos`."""
    if request.sampling.ignore_eos and request.stop_ids:
        raise Invalid("SGLang honours no stop tokens with ignore_eos", param="ignore_eos")
    values = limited_sampling(request, model.sampling)
    values.pop("logprobs", None)
    arguments = _NEUTRAL | {_NAMES.get(name, name): value for name, value in values.items()}
    arguments["top_k"] = arguments["top_k"] or -1
    grammar = _grammar(request)
    return (
        arguments
        | grammar
        | {
            "stop_token_ids": list(request.stop_ids),
            # Without stop ids nothing but the length ends a turn, or the end of a grammar.
            "ignore_eos": not request.stop_ids and not grammar,
        }
    )


def _grammar(request: EngineRequest) -> dict[str, str]:
    form = guided_arguments(request)
    if form is None:
        return {}
    if "grammar" in form:
        # With llguidance this takes Lark (`dispatch_ebnf`).
        return {"ebnf": form["grammar"]}
    schema = form.get("json", {"type": "object"})
    return {"json_schema": msgspec.json.encode(schema).decode()}
