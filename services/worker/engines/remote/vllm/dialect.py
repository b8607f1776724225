"""The token interface of `vllm serve` (`POST /inference/v1/generate`), of 0.32 and 0.33; run with
0.32.0 on a CPU.

Source: `vllm/entrypoints/scale_out/token_in_token_out/protocol.py` and `serving.py` of 0.32.0.
"""

from msgspec import Struct
from typing_extensions import override

from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import ModelFacts
from services.worker.engine import EngineDied, EngineRequest
from services.worker.engines.arguments import guided_arguments, integer_priority
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
from services.worker.engines.remote.http import HttpRefusal, ServerHttp, Unreachable
from services.worker.engines.remote.image_placeholders import data_url
from services.worker.engines.remote.listed_models import TokenizedText
from services.worker.engines.remote.vllm.reader import VllmReader
from services.worker.engines.remote.vllm.server import PATH, read_properties, read_pulse
from services.worker.engines.vllm.requests import sampling_arguments

_NO_TOKENIZER = "skip_tokenizer_init"
"""In the error of a server without a tokenizer, also with `--tokens-only`: `get_tokenizer` of
`vllm/renderers/base.py`."""
_ID_PREFIX = "generate-tokens-"
"""vLLM puts it before the id of a request."""


class _WeightInfo(Struct):
    weight_version: str


class _Paused(Struct):
    is_paused: bool


class VllmDialect(Dialect):
    """`vllm serve`."""

    name = "vllm-server"
    shares_queued = True
    flags = {
        "priority": "--scheduling-policy priority",
        "grammar": '--structured-outputs-config \'{"backend": "guidance"}\'',
    }
    experts_suffix = ".npy"
    weights_need = "VLLM_SERVER_DEV_MODE=1 in its environment"

    @override
    async def describe(self, http: ServerHttp) -> ServerFacts:
        return await read_properties(http)

    @override
    async def tokenize(self, http: ServerHttp, server: ServerFacts, text: str) -> list[int] | None:
        body = {"model": server.model, "prompt": text, "add_special_tokens": False}
        try:
            answer: TokenizedText = await http.json("/tokenize", body, TokenizedText)
        except HttpRefusal as refusal:
            if refusal.status == 400 and _NO_TOKENIZER in str(refusal):
                return None
            raise
        return answer.tokens

    @override
    def generate(
        self, request: EngineRequest, ids: list[int], server: ServerFacts, model: ModelFacts
    ) -> ServerRequest:
        sampling = sampling_arguments(request, model.sampling)
        form = guided_arguments(request)
        if form is not None:
            sampling["structured_outputs"] = form
        body = {
            "request_id": request.id,
            "model": request.adapter or server.model,
            "token_ids": ids,
            "sampling_params": sampling,
            "stream": True,
            # Counts in each event show what is lost on the way.
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if "priority" not in server.lacking:
            body["priority"] = -integer_priority(request)  # smaller ones are sooner
        if request.images:
            body["content_parts"] = [
                {"type": "image_url", "url": data_url(image), "uuid": image.hash}
                for image in request.images
            ]
            body["return_token_ids"] = True
        return ServerRequest(PATH, body)

    @override
    def reader(self, request: EngineRequest, call: ServerRequest) -> VllmReader:
        return VllmReader(request.sampling.logprobs)

    @override
    def abort(self, call: ServerRequest) -> ServerRequest | None:
        body = {"request_ids": [_ID_PREFIX + call.body["request_id"]]}
        return ServerRequest("/inference/v1/abort_requests", body)

    @override
    async def pulse(self, http: ServerHttp) -> Pulse:
        return await read_pulse(http)

    # -- weights

    @override
    async def weights(self, http: ServerHttp) -> WeightsState | None:
        try:
            info: _WeightInfo = await http.json("/weight_info", kind=_WeightInfo)
            state: _Paused = await http.json("/is_paused", kind=_Paused)
        except HttpRefusal as refusal:
            if refusal.status == 404:
                return None
            raise
        return WeightsState(version_of(info.weight_version), state.is_paused)

    @override
    async def pause(self, http: ServerHttp, *, abort: bool) -> None:
        # The cache is emptied, also under kept turns: others may load weights now.
        mode = "abort" if abort else "keep"
        await http.post(f"/pause?mode={mode}&clear_cache=true", {}, PAUSE_S)

    @override
    async def resume(self, http: ServerHttp) -> None:
        await http.post("/resume", {}, PAUSE_S)

    @override
    async def update_weights(self, http: ServerHttp, source: str, version: int) -> None:
        """Loads them from the server's disk. After a failure the weights are not known, and the
        label must show that."""
        load = {"method": "reload_weights", "kwargs": {"weights_path": source}}
        reset = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
        await http.post("/update_weight_version", {"new_version": f"loading {version}"})
        try:
            await http.post("/collective_rpc", load, UPDATE_S)
            await http.post(reset, {}, PAUSE_S)
            await http.post("/update_weight_version", {"new_version": str(version)})
        except (HttpRefusal, Unreachable) as error:
            raise EngineDied(f"vLLM has not loaded the weights of {source}: {error}") from error


class VllmServer(RemoteEngine):
    """The engine `vllm-server`."""

    @staticmethod
    @override
    def make_dialect(config: WorkerConfig) -> Dialect:
        return VllmDialect()
