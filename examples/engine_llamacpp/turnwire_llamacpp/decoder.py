"""Decodes turns with llama.cpp, all of them in one batch for each step, and keeps ended ones in the
KV cache.

Each turn has a sequence of llama.cpp's, with its tokens in the cache. When a turn ends, its
sequence stays. The next turn takes over the sequence that begins as its prompt does, or copies the
beginning; llama.cpp then shares the cells.

Everything here runs on one thread, except `add`, `stop` and `Turn.close`.
"""

import ctypes
import os
import random
import sys
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import llama_cpp
import numpy
from msgspec import Struct
from numpy.typing import NDArray

from schemas.conversation import Sampling
from schemas.events import FinishReason
from services.worker.engine import EngineDelta, EngineRequest
from services.worker.engines.arguments import chosen_first
from services.worker.engines.guide import Guide
from services.worker.engines.memory import available_bytes, cpu_kv_tokens

IDLE = 2
"""Least number of sequences without an open turn: one that a new turn begins as, and one to copy it
to."""
COLDEST = 1e-4
"""Least temperature that is not greedy."""
NO_ROOM = 1
"""What `llama_decode` returns if the KV cache is full."""
KV_TYPES = {
    "f16": (llama_cpp.GGML_TYPE_F16, 2.0),
    "f32": (llama_cpp.GGML_TYPE_F32, 4.0),
    "q8_0": (llama_cpp.GGML_TYPE_Q8_0, 34 / 32),
}
"""Name → llama.cpp's number, and bytes."""
ERROR = 4
"""llama.cpp's level of errors; a start has a thousand lines of lower levels."""


def _print(level: int, text: bytes, _: object) -> None:
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


_LOG = llama_cpp.llama_log_callback(_print)
"""Must outlive the library, which calls it."""


class EngineArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """The `engine_args` of this engine."""

    gguf: str | None = None
    """The file; default: the only one in the model's folder. Of a file in parts: the first."""
    n_gpu_layers: int = -1
    """Layers on the GPU, if llama.cpp was built for one; -1: all."""
    n_threads: int | None = None
    """CPU threads; default: all cores but one."""
    n_batch: int = 512
    """Tokens of a step, all turns together: more make prompts faster, and gaps between tokens
    longer."""
    kv_type: Literal["f16", "f32", "q8_0"] = "f16"
    """Numbers in the KV cache."""
    flash_attention: bool = True
    """Off: slower, and the scores depend less on how turns were batched."""
    kept: int = 16
    """Ended turns that stay in the cache while there is room, besides those that decode."""


class Turn:
    """One turn, with all its tokens so far."""

    def __init__(self, request: EngineRequest, sampling: Sampling, guide: Guide | None) -> None:
        """`sampling`: the request's, with the model's defaults."""
        self.ids = array("i", request.token_ids)
        """Prompt and output."""
        self.salt = request.cache_salt
        self.priority = request.priority
        self.closed = False
        self.deliver: Callable[[EngineDelta], None] = lambda _: None
        """Takes a step's result on the event loop."""
        self.limit = len(self.ids) + (sampling.max_tokens or 0)
        self.stops = frozenset(request.stop_ids)
        self._least = len(self.ids) + (sampling.min_tokens or 0)
        self._sampling = sampling
        self._seed = random.getrandbits(32) if sampling.seed is None else sampling.seed
        self._guide = guide
        resumed = self.ids[len(self.ids) - request.resumed :]
        self._counts = Counter(resumed)
        if guide is not None:
            guide.advance(resumed)
        self._opened = time.monotonic()
        self._reported = False

    def close(self) -> None:
        """Stops the decoding at the next step."""
        self.closed = True

    def begin(self, cached: int) -> EngineDelta | None:
        """Makes the delta with the number of cached tokens, the first time that the turn gets a
        sequence."""
        if self._reported:
            return None
        self._reported = True
        return EngineDelta(cached=cached, waited_s=time.monotonic() - self._opened)

    def choose(self, context: Any, row: int, scores: NDArray[numpy.float32]) -> EngineDelta:
        """Chooses the next token by its scores, which are row `row` of llama.cpp's output and are
        changed in place."""
        top = self._sampling.logprobs
        logprobs = None if top is None else _log_softmax(scores)
        self._shape(scores)
        token = self._sample(context, row, scores)
        if self._guide is not None:
            self._guide.advance([token])
        self._counts[token] += 1
        self.ids.append(token)
        listed = None if logprobs is None else [_listed(logprobs, token, top or 0)]
        if token in self.stops:
            return EngineDelta(
                finish=FinishReason.STOP, stop_id=token, stop_logprobs=listed[0] if listed else None
            )
        return EngineDelta(
            [token], listed, finish=FinishReason.LENGTH if len(self.ids) == self.limit else None
        )

    def _shape(self, scores: NDArray[numpy.float32]) -> None:
        sampling = self._sampling
        if (penalty := sampling.repetition_penalty) not in (None, 1.0):
            seen = numpy.unique(numpy.frombuffer(self.ids, numpy.int32))
            scores[seen] = numpy.where(
                scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty
            )
        if self._counts and (sampling.presence_penalty or sampling.frequency_penalty):
            counts = numpy.array(list(self._counts.values()), numpy.float32)
            each = (sampling.presence_penalty or 0.0) + (sampling.frequency_penalty or 0.0) * counts
            scores[list(self._counts)] -= each.astype(numpy.float32)
        for token, bias in sampling.logit_bias.items():
            scores[token] += bias
        if len(self.ids) < self._least:
            scores[list(self.stops)] = -numpy.inf
        if self._guide is not None:
            allowed = self._guide.allowed(len(scores), list(self.stops))
            if allowed is not None:
                scores[~allowed] = -numpy.inf

    def _sample(self, context: Any, row: int, scores: NDArray[numpy.float32]) -> int:
        sampling = self._sampling
        temperature = sampling.temperature or 0.0
        if temperature < COLDEST or sampling.top_k == 1:
            return int(scores.argmax())
        # The seed of a step depends on the place in the text alone, so that a turn repeats however
        # it was batched.
        seed = hash((self._seed, len(self.ids))) % 0xFFFFFFFF
        steps = [llama_cpp.llama_sampler_init_temp(temperature)]
        if sampling.top_k is not None and sampling.top_k > 0:
            steps.append(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
        if sampling.top_p is not None and sampling.top_p < 1.0:
            steps.append(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p:
            steps.append(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for step in [*steps, llama_cpp.llama_sampler_init_dist(seed)]:
            llama_cpp.llama_sampler_chain_add(chain, step)
        try:
            return int(llama_cpp.llama_sampler_sample(chain, context, row))
        finally:
            llama_cpp.llama_sampler_free(chain)


class Cells:
    """A sequence of llama.cpp: the tokens of a turn in the KV cache, or of an ended one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens = array("i")
        self.salt: str | None = None
        self.turn: Turn | None = None
        self.used_at = 0

    def common(self, turn: Turn) -> int:
        """Returns how many tokens at the beginning of the turn are here; the last one must be
        computed anyway."""
        length = min(len(self.tokens), len(turn.ids) - 1)
        if self.salt != turn.salt or length == 0:
            return 0
        here, there = (
            numpy.frombuffer(ids, numpy.int32, length) for ids in (self.tokens, turn.ids)
        )
        differs = here != there
        return int(differs.argmax()) if differs.any() else length


class Part(NamedTuple):
    """Tokens of one turn in a step."""

    cells: Cells
    ids: "array[int]"
    chooses: bool
    """The scores after the last one are needed."""


class Decoder:
    """A model, its KV cache and its turns."""

    def __init__(self, path: Path, args: EngineArgs, *, slots: int) -> None:
        """Loads the model. Raises ValueError if llama.cpp cannot load it."""
        llama_cpp.llama_log_set(_LOG, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = args.n_gpu_layers
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise ValueError(f"llama.cpp cannot load {path}")
        self._args = args
        sequences = min(slots + max(IDLE, args.kept), int(llama_cpp.llama_max_parallel_sequences()))
        self.slots = min(slots, sequences - IDLE)
        """Turns that decode at once."""
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self.end_ids = {
            int(llama_cpp.llama_vocab_eos(vocabulary)),
            int(llama_cpp.llama_vocab_eot(vocabulary)),
        } - {-1}
        self.trained_window = int(llama_cpp.llama_model_n_ctx_train(self._model))
        self.cells = 0
        """Tokens that the KV cache holds."""
        self.used = 0
        """How many of them open turns use."""
        self._recurrent = bool(
            llama_cpp.llama_model_is_recurrent(self._model)
            or llama_cpp.llama_model_is_hybrid(self._model)
        )
        self._all = [Cells(number) for number in range(sequences)]
        self._active: list[Cells] = []
        """The sequences of open turns, the oldest first."""
        self._added: deque[Turn] = deque()
        self._waiting: list[Turn] = []
        self._uses = count(1)
        self._wake = threading.Event()
        self._stopped = False

    def allocate(self, window: int, kv_tokens: int | None) -> str:
        """Allocates a KV cache of `kv_tokens`, by default as large as the window or as memory
        allows. Returns why it is not larger. Raises ValueError if llama.cpp cannot."""
        tokens, limit = kv_tokens, "--kv-tokens holds no more"
        if tokens is None:
            size = int(self._numbers_per_token() * KV_TYPES[self._args.kv_type][1])
            tokens, limit = cpu_kv_tokens(size, window, available_bytes())
        threads = self._args.n_threads or max(1, (os.cpu_count() or 2) - 1)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = tokens
        options.n_batch = options.n_ubatch = max(self._args.n_batch, self.slots)
        options.n_seq_max = len(self._all)
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = KV_TYPES[self._args.kv_type][0]
        if not self._args.flash_attention:
            options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.kv_unified = True  # sequences share the cells of what they have in common
        options.swa_full = True  # a beginning can be taken over where layers have a sliding window
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise ValueError(f"llama.cpp cannot allocate a KV cache of {tokens} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(options.n_batch, 0, 1)
        self._room = int(options.n_batch)
        self.cells = int(llama_cpp.llama_n_ctx(self._context))
        return limit

    def add(self, turn: Turn) -> None:
        """Adds a turn."""
        self._added.append(turn)
        self._wake.set()

    def stop(self) -> None:
        """Ends `run` after the current step."""
        self._stopped = True
        self._wake.set()

    def run(self, deliver: Callable[[list[tuple[Turn, EngineDelta]]], object]) -> None:
        """Decodes until `stop`. `deliver` gets the result of each step."""
        while not self._stopped:
            self._wake.clear()
            if (deltas := self.step()) is None:
                self._wake.wait()
            else:
                deliver(deltas)
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def step(self) -> list[tuple[Turn, EngineDelta]] | None:
        """Runs one step, and returns what it decoded; None if no turn is open.

        Raises RuntimeError if llama.cpp fails.
        """
        deltas = self._admit()
        if not self._active:
            self.used = 0
            return None
        while (status := self._decode(parts := self._parts())) == NO_ROOM:
            self._make_room()
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        row = -1
        for cells, ids, chooses in parts:
            row += len(ids)
            cells.tokens += ids
            turn = cells.turn
            assert turn is not None
            delta = None
            if chooses:
                pointer = llama_cpp.llama_get_logits_ith(self._context, row)
                delta = turn.choose(
                    self._context, row, numpy.ctypeslib.as_array(pointer, (self.vocab_size,))
                )
            elif len(cells.tokens) == turn.limit:
                delta = EngineDelta(finish=FinishReason.LENGTH)
            if delta is not None:
                deltas.append((turn, delta))
                if delta.finish is not None:
                    self._release(cells)
        self.used = sum(len(cells.tokens) for cells in self._active)
        return deltas

    def _admit(self) -> list[tuple[Turn, EngineDelta]]:
        """Releases closed turns, and begins turns that wait, as long as there are slots and cells
        for them."""
        while self._added:
            self._waiting.append(self._added.popleft())
        for cells in [cells for cells in self._active if cells.turn is None or cells.turn.closed]:
            self._release(cells)
        self._waiting = [turn for turn in self._waiting if not turn.closed]
        deltas = []
        while self._waiting and len(self._active) < self.slots:
            turn = max(self._waiting, key=lambda turn: turn.priority)
            # A turn that was paused for want of cells waits until they are there.
            taken = sum(len(cells.turn.ids) for cells in self._active if cells.turn is not None)
            if self._active and taken + len(turn.ids) > self.cells:
                break
            self._waiting.remove(turn)
            if (delta := turn.begin(self._place(turn))) is not None:
                deltas.append((turn, delta))
        return deltas

    def _place(self, turn: Turn) -> int:
        """Gives the turn a sequence. Returns how many of its tokens are in it."""
        idle = sorted(
            (cells for cells in self._all if cells.turn is None), key=lambda cells: cells.used_at
        )
        source = max(self._all, key=lambda cells: cells.common(turn))
        common = source.common(turn)
        if self._recurrent and (source.turn is not None or common < len(source.tokens)):
            common = 0  # a recurrent state has one place only, its end
        target = source
        if source.turn is not None or 2 * common < len(source.tokens) or common == 0:
            target = next(cells for cells in idle if cells is not source)
            self._cut(target, 0)
            if common:
                llama_cpp.llama_memory_seq_cp(self._memory, source.number, target.number, 0, common)
                target.tokens = source.tokens[:common]
        self._cut(target, common)
        target.turn, target.salt = turn, turn.salt
        self._active.append(target)
        return len(target.tokens)

    def _cut(self, cells: Cells, length: int) -> None:
        """Removes what follows the first `length` tokens of a sequence; all, where llama.cpp
        cannot."""
        if length < len(cells.tokens) and not llama_cpp.llama_memory_seq_rm(
            self._memory, cells.number, length, -1
        ):
            length = 0
            llama_cpp.llama_memory_seq_rm(self._memory, cells.number, -1, -1)
        del cells.tokens[length:]

    def _release(self, cells: Cells) -> None:
        """Ends the turn of a sequence, which stays in the cache."""
        self._active.remove(cells)
        cells.turn, cells.used_at = None, next(self._uses)

    def _make_room(self) -> None:
        """Removes the ended turn that was used longest ago; if there is none, pauses the newest
        open turn."""
        ended = [cells for cells in self._all if cells.turn is None and cells.tokens]
        if ended:
            self._cut(min(ended, key=lambda cells: cells.used_at), 0)
            return
        if len(self._active) == 1:
            raise RuntimeError("one turn fills the KV cache")
        newest = self._active[-1]
        assert newest.turn is not None
        self._waiting.insert(0, newest.turn)
        self._release(newest)
        self._cut(newest, 0)

    def _parts(self) -> list[Part]:
        """Divides the step: first turns that decode, then prompts as they came."""
        room = self._room
        parts = []
        for cells in sorted(self._active, key=lambda cells: len(_rest(cells)) > 1):
            rest = _rest(cells)
            ids = rest[:room]
            if ids:
                turn = cells.turn
                parts.append(
                    Part(
                        cells,
                        ids,
                        turn is not None and len(ids) == len(rest) and len(turn.ids) < turn.limit,
                    )
                )
            room -= len(ids)
        return parts

    def _decode(self, parts: Sequence[Part]) -> int:
        batch, at = self._batch, 0
        for cells, ids, chooses in parts:
            for place, token in enumerate(ids, len(cells.tokens)):
                batch.token[at] = token
                batch.pos[at] = place
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = cells.number
                batch.logits[at] = False
                at += 1
            batch.logits[at - 1] = chooses
        batch.n_tokens = at
        return int(llama_cpp.llama_decode(self._context, batch))

    def _numbers_per_token(self) -> int:
        """Returns how many numbers a token has in the KV cache."""
        name = self._metadata("general.architecture") or ""
        width = llama_cpp.llama_model_n_embd(self._model) // max(
            1, llama_cpp.llama_model_n_head(self._model)
        )
        both = sum(
            int(self._metadata(f"{name}.attention.{kind}_length") or width)
            for kind in ("key", "value")
        )
        heads = llama_cpp.llama_model_n_layer(self._model) * llama_cpp.llama_model_n_head_kv(
            self._model
        )
        return int(heads * both)

    def _metadata(self, key: str) -> str | None:
        text = ctypes.create_string_buffer(128)
        found = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), text, len(text))
        return text.value.decode() if found >= 0 else None


def _rest(cells: Cells) -> "array[int]":
    """Returns the tokens of the turn that are not in the cache yet."""
    return cells.turn.ids[len(cells.tokens) :] if cells.turn is not None else array("i")


def _log_softmax(scores: NDArray[numpy.float32]) -> NDArray[numpy.float64]:
    shifted: NDArray[numpy.float64] = scores.astype(numpy.float64) - scores.max()
    shifted -= numpy.log(numpy.exp(shifted).sum())
    return shifted


def _listed(logprobs: NDArray[numpy.float64], token: int, top: int) -> list[tuple[int, float]]:
    likeliest = [int(i) for i in numpy.argpartition(-logprobs, top)[: top + 1]] if top else []
    return chosen_first(token, {i: float(logprobs[i]) for i in (token, *likeliest)}, top)
