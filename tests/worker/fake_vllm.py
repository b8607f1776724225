"""A small `vllm`, and the `zmq` that it needs, as strict as the real one (0.32) in what it takes.

`modules()` gives what to put into `sys.modules`; `AsyncLLM.last` is the engine that was built. The
model's next token depends on its position, the LoRA adapter and the weights alone.
"""

import asyncio
import threading
import types
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import count
from typing import Any, ClassVar

import msgspec

from schemas.token_ids import unpack_ids
from services.tokenization.image_processor import ImageProcessor
from tests.kit.waiting import LIMIT_S
from tests.worker.fake_cache import FakeCache

VOCAB = 512
BLOCK = 16
SIZE = (320, 240)
"""Pixels of every image."""
_stored_by_endpoint: dict[str, "Subscription"] = {}


class VLLMClientError(Exception):
    pass


class EngineDeadError(Exception):
    pass


class EngineGenerateError(Exception):
    pass


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1


@dataclass
class StructuredOutputsParams:
    json: str | dict[str, Any] | None = None
    json_object: bool | None = None
    grammar: str | None = None


def _check(valid: bool, message: str) -> None:
    if not valid:
        raise VLLMClientError(message)


class SamplingParams(msgspec.Struct, kw_only=True):
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None

    def __post_init__(self) -> None:
        _check(0.0 <= self.temperature <= 2.0, "temperature must be in [0, 2]")
        _check((self.max_tokens or 0) >= max(1, self.min_tokens), "max_tokens must be at least 1")
        _check(self.seed is None or 0 <= self.seed < 2**63, "the sampler overflows, or has no seed")
        _check(
            self.logit_bias is None or len(self.logit_bias) > 0, "an empty bias costs a processor"
        )


@dataclass(kw_only=True)
class AsyncEngineArgs:
    model: str
    trust_remote_code: bool = False
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool | None = None
    scheduling_policy: str = "fcfs"
    disable_log_stats: bool = False
    kv_events_config: Any = None
    speculative_config: Any = None
    skip_tokenizer_init: bool = False
    logprobs_mode: str = "raw_logprobs"
    data_parallel_size: int = 1
    enable_lora: bool = False
    max_loras: int = 1
    long_prefill_token_threshold: int = 0


@dataclass
class KVEventsConfig:
    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str = "tcp://*:5557"


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


def tokens_input(
    prompt_token_ids: list[int], *, prompt: str | None = None, cache_salt: str | None = None
) -> Any:
    assert type(prompt_token_ids) is list
    assert all(type(token) is int for token in prompt_token_ids)
    return {"type": "token", "prompt_token_ids": prompt_token_ids, "cache_salt": cache_salt}


class StatLoggerBase:
    pass


@dataclass(frozen=True)
class PlaceholderRange:
    offset: int
    length: int


class Renderer:
    """Replaces one placeholder by the tokens of each image, in order, and keeps which images it has
    processed."""

    def __init__(self, model: str) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.processor = ImageProcessor.load(model)
        self.mm_processor_cache = self
        self.processed: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = False

    def is_cached(self, hashes: list[str]) -> list[bool]:
        return [one in self.processed for one in hashes]

    def render_cmpl(self, prompts: list[dict[str, Any]]) -> list[Any]:
        self.waiting = not self.gate.is_set()
        assert self.gate.wait(LIMIT_S)
        (prompt,) = prompts
        placeholder = self.tokenizer.convert_tokens_to_ids(self.processor.placeholder)
        pixels, hashes = prompt["multi_modal_data"]["image"], prompt["multi_modal_uuids"]["image"]
        _check(len(pixels) <= 2, "At most 2 image(s) may be provided in one prompt.")
        ids: list[int] = []
        places: list[Any] = []
        sent: list[Any] = []
        for token in prompt["prompt_token_ids"]:
            if token != placeholder or len(places) == len(pixels):
                ids.append(token)
                continue
            image, digest = pixels[len(places)], hashes[len(places)]
            assert image is not None or digest in self.processed
            sent.append(None if digest in self.processed else image)
            self.processed.add(digest)
            expansion = unpack_ids(self.processor.expansion(*SIZE).ids)
            places.append(PlaceholderRange(len(ids), len(expansion)))
            ids += expansion
        assert len(places) == len(pixels), "Failed to apply prompt replacement"
        made = {"type": "multimodal", "prompt_token_ids": ids, "cache_salt": prompt["cache_salt"]}
        images = {"mm_kwargs": sent, "mm_hashes": hashes, "mm_placeholders": places}
        return [made | {name: {"image": values} for name, values in images.items()}]


@dataclass(eq=False)
class _Request:
    prompt: list[int]
    salt: str | None
    sampling: SamplingParams
    priority: int
    adapter: LoRARequest | None
    outputs: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    done: list[int] = field(default_factory=list)
    cached: int | None = None


class AsyncLLM:
    last: ClassVar["AsyncLLM"]

    def __init__(self, args: AsyncEngineArgs, stat_loggers: list[Any]) -> None:
        space = types.SimpleNamespace
        window = args.max_model_len or 2048
        self.args = args
        self.vllm_config = space(
            model_config=space(
                max_model_len=window,
                get_vocab_size=lambda: VOCAB,
                skip_tokenizer_init=args.skip_tokenizer_init,
                logprobs_mode=args.logprobs_mode,
            ),
            cache_config=space(
                block_size=args.block_size or BLOCK,
                num_gpu_blocks=args.num_gpu_blocks_override or 1024,
                effective_attention_block_size=None,
                kv_cache_size_tokens=None,
                enable_prefix_caching=args.enable_prefix_caching is not False,
            ),
            scheduler_config=space(
                max_num_seqs=args.max_num_seqs,
                policy=args.scheduling_policy,
                long_prefill_token_threshold=args.long_prefill_token_threshold,
            ),
            speculative_config=args.speculative_config
            and space(use_eagle_block_drop=lambda: args.speculative_config["method"] == "eagle"),
        )
        self.loggers = [factory(self.vllm_config, 0) for factory in stat_loggers]
        self.received: set[str] = set()
        self.requests: list[_Request] = []
        self.running: list[_Request] = []
        self.aborted: list[str] = []
        self.cache = FakeCache(BLOCK)
        self.adapters: set[LoRARequest] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.weights = 0
        """A number that each token depends on."""
        self.label = "default"
        """That of the weights."""
        self.dead = False
        self.shutdowns = 0
        self.failure: Exception | None = None
        self._batches = count()
        self._stepping: asyncio.Task[None] | None = None
        type(self).last = self

    @classmethod
    def from_engine_args(
        cls, engine_args: AsyncEngineArgs, *, stat_loggers: list[Any]
    ) -> "AsyncLLM":
        return cls(engine_args, stat_loggers)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.args.model)

    def get_tokenizer(self) -> Any:
        return self.renderer.tokenizer

    @property
    def errored(self) -> bool:
        return self.dead

    def kill(self) -> None:
        self.dead = True
        for request in self.requests:
            request.outputs.put_nowait(EngineDeadError())

    def abort_all(self) -> None:
        """Ends every request, as a pause with the mode `abort`."""
        out = types.SimpleNamespace(
            token_ids=[], logprobs=None, finish_reason="abort", stop_reason=None, label=self.label
        )
        self.running.clear()
        for request in self.requests:
            request.outputs.put_nowait(
                types.SimpleNamespace(outputs=[out], num_cached_tokens=0, finished=True)
            )

    def shutdown(self, timeout: float | None = None) -> None:
        self.shutdowns += 1

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        if not self.args.enable_lora:
            raise RuntimeError("LoRA is not enabled. Use --enable-lora to enable LoRA.")
        assert len(self.adapters) + 1 < self.args.max_loras, "the last place stays empty"
        assert lora_request.lora_int_id not in {one.lora_int_id for one in self.adapters}
        self.adapters.add(lora_request)
        return True

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[Any, None]:
        if self.dead:
            raise EngineDeadError
        if self.failure is not None:
            raise EngineGenerateError from self.failure
        ids = prompt["prompt_token_ids"]
        assert not sampling_params.detokenize
        assert sampling_params.output_kind is RequestOutputKind.DELTA
        _check(
            0 < len(ids) < self.vllm_config.model_config.max_model_len,
            "longer than the maximum model length",
        )
        if prompt["type"] == "multimodal" and not self._receive(prompt):
            out = types.SimpleNamespace(token_ids=[], logprobs=None, finish_reason="error")
            yield types.SimpleNamespace(outputs=[out], num_cached_tokens=0, finished=True)
            return
        _check((sampling_params.logprobs or 0) <= 20, "greater than max allowed: 20")
        assert lora_request is None or lora_request in self.adapters
        request = _Request(ids, prompt["cache_salt"], sampling_params, priority, lora_request)
        self.requests.append(request)
        if self._stepping is None:
            self._stepping = asyncio.get_running_loop().create_task(self._step())
        finished = False
        try:
            while not finished:
                output = await request.outputs.get()
                if isinstance(output, Exception):
                    raise output
                finished = output.finished
                yield output
        finally:
            if not finished:
                self.aborted.append(request_id)
            self.requests.remove(request)
            if request in self.running:
                self.running.remove(request)

    def _receive(self, prompt: Any) -> bool:
        """Whether vLLM has all images: those of the prompt, and those that were sent before."""
        images, hashes = prompt["mm_kwargs"]["image"], prompt["mm_hashes"]["image"]
        for image, digest in zip(images, hashes, strict=True):
            if image is None and digest not in self.received:
                self.renderer.processed.discard(digest)
                return False
            self.received.add(digest)
        return True

    async def _step(self) -> None:
        while self.requests and not self.dead:
            await asyncio.sleep(0)
            await self.gate.wait()
            waiting = [request for request in self.requests if request not in self.running]
            for request in sorted(waiting, key=lambda request: request.priority):
                if len(self.running) < self.args.max_num_seqs:
                    self.running.append(request)
            for logger in self.loggers:
                logger.record(types.SimpleNamespace(kv_cache_usage=0.5), None, engine_idx=0)
            for request in list(self.running):
                request.outputs.put_nowait(self._decoded(request))
        self._stepping = None

    def _decoded(self, request: _Request) -> Any:
        sampling, ids = request.sampling, [*request.prompt, *request.done]
        if request.cached is None:
            request.cached = self.cache.match(request.prompt, _extras(request))
        self._store(ids, request)
        token = (len(ids) * 37 + _number(request) * 53 + self.weights * 71) % 491 + 8
        if (sampling.logit_bias or {}).get(token) == -100:
            token = 7
        if token in sampling.stop_token_ids and len(request.done) < sampling.min_tokens:
            token = 7
        request.done.append(token)
        reason = None
        if token in sampling.stop_token_ids:
            reason = "stop"
        elif len(request.done) == sampling.max_tokens:
            reason = "length"
        if reason is not None:
            self.running.remove(request)
        logprobs = None
        if sampling.logprobs is not None:
            likeliest = {
                3 + n: types.SimpleNamespace(logprob=-0.5 - n) for n in range(sampling.logprobs)
            }
            logprobs = [likeliest | {token: types.SimpleNamespace(logprob=-0.25)}]
        out = types.SimpleNamespace(
            token_ids=[token],
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=None,
            label=self.label,
        )
        stats = types.SimpleNamespace(queued_ts=1.0, scheduled_ts=1.25)
        return types.SimpleNamespace(
            outputs=[out],
            num_cached_tokens=request.cached,
            finished=reason is not None,
            metrics=stats,
        )

    def _store(self, ids: list[int], request: _Request) -> None:
        adapter = None if request.adapter is None else request.adapter.lora_name
        events = [
            stored(
                block.hash,
                block.parent,
                block.ids,
                request.salt if block.parent is None else None,
                adapter,
            )
            for block in self.cache.store(ids, _extras(request))
        ]
        if events and self.args.kv_events_config is not None:
            self.publish(events)

    def publish(self, events: list[dict[str, Any]]) -> None:
        number = next(self._batches).to_bytes(8, "big")
        payload = msgspec.msgpack.encode([0.0, events, 0])
        _stored_by_endpoint[self.args.kv_events_config.endpoint].deliver((b"", number, payload))


def _number(request: _Request) -> int:
    return 0 if request.adapter is None else request.adapter.lora_int_id


def _extras(request: _Request) -> str | None:
    """What the hashes of a request's blocks cover beside its tokens."""
    if request.adapter is None:
        return request.salt
    return f"{request.adapter.lora_path} {request.salt}"


def stored(
    block: int, parent: int | None, ids: list[int], salt: str | None, adapter: str | None = None
) -> dict[str, Any]:
    """A `BlockStored` as vLLM packs it."""
    extras = [key for key in (adapter, salt) if key]
    return {
        "type": "BlockStored",
        "block_hashes": [block],
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": len(ids),
        "medium": "GPU",
        "lora_name": adapter,
        "extra_keys": [extras or None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


class Subscription:
    """The one kind of socket that is needed."""

    def __init__(self) -> None:
        self._batches: asyncio.Queue[Any] = asyncio.Queue()

    def set(self, option: int, value: int) -> None:
        pass

    def subscribe(self, topic: bytes) -> None:
        assert topic == b""

    def connect(self, endpoint: str) -> None:
        assert endpoint.startswith("ipc://")
        _stored_by_endpoint[endpoint] = self

    def deliver(self, batch: Any) -> None:
        self._batches.put_nowait(batch)

    async def recv_multipart(self) -> Any:
        batch = await self._batches.get()
        if batch is None:
            raise asyncio.CancelledError  # as zmq, whose futures are cancelled
        return batch

    def close(self) -> None:
        self._batches.put_nowait(None)


class Context:
    def __init__(self) -> None:
        self._sockets: list[Subscription] = []

    def socket(self, kind: int) -> Subscription:
        self._sockets.append(Subscription())
        return self._sockets[-1]

    def destroy(self, linger: int) -> None:
        for socket in self._sockets:
            socket.close()


def modules() -> dict[str, Any]:
    """The modules by name."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.config.kv_events": {"KVEventsConfig": KVEventsConfig},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs},
        "vllm.exceptions": {"VLLMClientError": VLLMClientError},
        "vllm.lora.request": {"LoRARequest": LoRARequest},
        "vllm.inputs": {"tokens_input": tokens_input},
        "vllm.sampling_params": {
            "SamplingParams": SamplingParams,
            "StructuredOutputsParams": StructuredOutputsParams,
            "RequestOutputKind": RequestOutputKind,
        },
        "vllm.v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
        "vllm.v1.engine.exceptions": {"EngineDeadError": EngineDeadError},
        "vllm.v1.metrics.loggers": {"StatLoggerBase": StatLoggerBase},
        "zmq": {"SUB": 2, "RCVHWM": 24, "RECONNECT_IVL": 18},
        "zmq.asyncio": {"Context": Context},
    }
    made = {name: types.ModuleType(name) for name in contents}
    for name, module in made.items():
        vars(module).update(contents[name])
    return made
