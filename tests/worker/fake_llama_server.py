"""A small llama-server, which takes no field that b11434 does not know.

Sources, of llama.cpp b11434: `tools/server/server-schema.cpp` (fields of a request),
`server-task.cpp` (events), `server-context.cpp` (`process_token`, `send_partial_response`,
`get_available_slot`, `/props`, `/slots`), `server-common.cpp` (errors, `validate_utf8`). The next
token depends on the position alone, or is that of `script`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.tokenization.detokenizer import Vocabulary
from tests.kit.engines import EMPTY_MODEL
from tests.worker.fake_server import Event, FakeServer, running

CONTEXT = 4096
LAG_S = 0.01
"""How long a slot decodes after its connection was closed."""
SIZE = 512
EOG = frozenset((5, 7))
OTHER = 6
"""The token in place of one that is banned."""
TEXT = "🙂🚀漢字é€t0123456789 "
PARTS = {499: b"\xf0\x9f", 500: b"\x99", 501: b"\x82", 502: b"\xe6\xbc", 503: b"\xa2"}
"""Tokens that are not whole characters: the first three make up the first character of `TEXT`, the
other two the third."""
SAMPLERS = frozenset(("penalties", "temperature", "top_k", "top_p", "min_p"))


class CompletionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Without defaults: the server has others for each, which its command line sets."""

    prompt: list[int]
    stream: bool
    return_tokens: bool
    return_progress: bool
    response_fields: list[str]
    cache_prompt: bool
    n_cache_reuse: int
    n_predict: int
    ignore_eos: bool
    samplers: list[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logit_bias: list[tuple[int, float]]
    mirostat: int
    dynatemp_range: float
    backend_sampling: bool
    n_probs: int
    post_sampling_probs: bool
    json_schema: dict[str, Any] | None = None


class Slot:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.is_busy = False
        self.task = -1
        self.decoded = 0

    def release(self) -> None:
        self.is_busy = False


def byte_tokenizer(pieces: Sequence[bytes]) -> Tokenizer:
    """A tokenizer with these tokens, all of them bytes of `TEXT`."""
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((letters, _),) = spelling.pre_tokenize_str(TEXT)
    names = dict(zip(TEXT.encode(), letters, strict=True))
    vocabulary = {"".join(names[byte] for byte in data): token for token, data in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_model(folder: Path) -> Path:
    """Writes a model of `SIZE` tokens, most of which are a word."""
    words = [f"t{token} ".encode() for token in range(SIZE)]
    pieces = [PARTS.get(token, word) for token, word in enumerate(words)]
    byte_tokenizer(pieces).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(EMPTY_MODEL)
    return folder


class FakeLlamaServer(FakeServer):
    def __init__(self, model: Path, slots: int = 4) -> None:
        super().__init__()
        self.slots = [Slot() for _ in range(slots)]
        self.script: Sequence[int] = ()
        """The first tokens of each output."""
        self.settings: dict[str, Any] = {"n_ctx": CONTEXT}
        self.decodes = True
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._vocabulary = Vocabulary(self._tokenizer)
        self.pulses = 0
        """Requests for a sign of life."""
        self._tasks = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/props", self._props),
            web.get("/slots", self._slots),
            web.post("/tokenize", self._tokenize),
            web.post("/completion", self._complete),
        ]

    def restart(self) -> None:
        """As a server that was killed and started: it has no task yet, and an empty cache."""
        self.drop()
        self.slots = [Slot() for _ in self.slots]

    def forget(self) -> None:
        """Empties the cache."""
        for slot in self.slots:
            slot.tokens = []

    async def _health(self, _: web.Request) -> web.Response:
        await self.hang()
        self.pulses += 1
        return web.json_response({"status": "ok"})

    async def _props(self, _: web.Request) -> web.Response:
        props = {
            "default_generation_settings": self.settings,
            "total_slots": len(self.slots),
            "model_path": "/models/served.gguf",
            "model_alias": "served",
            "build_info": "b11434-515e85511",
        }
        return web.json_response(props)

    async def _slots(self, _: web.Request) -> web.Response:
        await self.hang()
        slots: list[Event] = []
        for number, slot in enumerate(self.slots):
            shown: Event = {"id": number, "n_ctx": CONTEXT, "is_processing": slot.is_busy}
            if slot.task >= 0:
                shown |= {"id_task": slot.task, "next_token": [{"n_decoded": slot.decoded}]}
            slots.append(shown)
        return web.json_response(slots)

    async def _tokenize(self, request: web.Request) -> web.Response:
        text = (await request.json())["content"]
        return web.json_response({"tokens": self._tokenizer.encode(text).ids})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        await self.hang()
        if not self.decodes:
            return _refuse(501, "This server does not support completions.")
        if self.refusals:
            return _refuse(self.refusals.pop(0), "not now")
        sent = await request.json()
        if "prompt" not in sent:
            return _refuse(400, "key 'prompt' not found")
        body = msgspec.convert(sent, CompletionBody)
        self.requests.append(sent)
        problem = _problem(body)
        if problem is not None:
            return _refuse(400, problem)
        async with aclosing(self._decode(body)) as events:
            return await self.stream(request, events, end=b"")

    async def _decode(self, body: CompletionBody) -> AsyncGenerator[Event, None]:
        slot = await self._free_slot(body.prompt)
        try:
            async for event in self._events(body, slot):
                await asyncio.sleep(0)
                yield event
        except BaseException:
            asyncio.get_running_loop().call_later(LAG_S, slot.release)
            raise
        slot.release()

    async def _free_slot(self, prompt: list[int]) -> Slot:
        """The free slot with the longest common beginning."""
        while not (free := [slot for slot in self.slots if not slot.is_busy]):
            await asyncio.sleep(0)
        slot = max(free, key=lambda slot: _common(slot.tokens, prompt))
        slot.is_busy = True
        slot.decoded = 0
        slot.task = self._tasks
        self._tasks += 1
        return slot

    async def _events(self, body: CompletionBody, slot: Slot) -> AsyncIterator[Event]:
        total = len(body.prompt)
        cached = min(_common(slot.tokens, body.prompt), total - 1) if body.cache_prompt else 0
        slot.tokens = body.prompt[:cached]
        for processed in (cached, total):
            progress = {"total": total, "cache": cached, "processed": processed}
            yield _event(0, total, tokens=[0], prompt_progress=progress)
        slot.tokens = list(body.prompt)
        text, reason = b"", ""
        while not reason:
            token = self._choose(body, slot)
            slot.decoded += 1
            text += b"" if token in EOG else self._vocabulary.bytes_of(token)
            if not is_cut(text):
                more: Event = {"content": text.decode("utf-8", "replace"), "tokens": [token]}
                if body.n_probs:
                    more["completion_probabilities"] = [_scored(token, body.n_probs)]
                yield _event(slot.decoded, total, **more)
                text = b""
            if token in EOG:
                reason = "eos"
            elif slot.decoded >= body.n_predict or total + slot.decoded >= CONTEXT:
                reason = "limit"
            else:
                slot.tokens.append(token)
        last = {"stop": True, "stop_type": reason, "tokens": []}
        yield _event(slot.decoded, total, **last)

    def _choose(self, body: CompletionBody, slot: Slot) -> int:
        token = (len(slot.tokens) * 37) % 491 + 8
        if slot.decoded < len(self.script):
            token = self.script[slot.decoded]
        is_banned = (token, -100.0) in body.logit_bias or (body.ignore_eos and token in EOG)
        return OTHER if is_banned else token


def fake_llama_server(model: Path, **options: Any) -> AbstractAsyncContextManager[FakeLlamaServer]:
    """A server that runs."""
    return running(FakeLlamaServer(model, **options))


def _problem(body: CompletionBody) -> str | None:
    """What the server would refuse, or a test must not send."""
    if not body.samplers or not SAMPLERS.issuperset(body.samplers):
        return f"samplers: {body.samplers}"
    if max(body.prompt) >= SIZE:
        return "Prompt contains invalid tokens"
    if len(body.prompt) >= CONTEXT:
        return f"request ({len(body.prompt)} tokens) exceeds the available context size"
    if not -1 <= body.seed < 2**32 or body.n_predict < 0 or body.top_k < 0:
        return "Value must be between"
    return None


def _refuse(status: int, message: str) -> web.Response:
    error = {"code": status, "message": message, "type": "error"}
    return web.json_response({"error": error}, status=status)


def _event(predicted: int, evaluated: int, **more: Any) -> Event:
    counts = {"tokens_predicted": predicted, "tokens_evaluated": evaluated}
    return {"content": "", "stop": False, **counts, **more}


def _scored(token: int, count: int) -> Event:
    ranked = [{"id": token, "logprob": -0.25}]
    ranked += [{"id": other, "logprob": -0.5 - other} for other in range(3, 2 + count)]
    return {**ranked[0], "top_logprobs": ranked}


def is_cut(text: bytes) -> bool:
    """Whether one of the last bytes begins a character of more bytes than follow."""
    for back, byte in enumerate(reversed(text[-4:]), 1):
        length = next((n for n, bits in ((4, 0xF0), (3, 0xE0), (2, 0xC0)) if byte >= bits), 1)
        if back < length:
            return True
    return False


def _common(held: Sequence[int], prompt: Sequence[int]) -> int:
    """The length of the common beginning."""
    for place, (cached, sent) in enumerate(zip(held, prompt, strict=False)):
        if cached != sent:
            return place
    return min(len(held), len(prompt))
