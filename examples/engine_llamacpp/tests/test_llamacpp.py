"""The engine over llama.cpp itself: the contract that every engine passes, and what is its own."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from schemas.conversation import OutputFormat
from schemas.errors import EngineFailed, Invalid
from services.runtime.config.stages import WorkerConfig
from services.worker.engines.registry import open_engine
from tests.worker.conformance import Bench, Conformance, cached, output

llama_cpp = pytest.importorskip("llama_cpp")

SLOTS = 4
WINDOW = 4096
PROMPT = [(11 * i + 3) % 500 + 8 for i in range(100)]


def config(folder: Path, **changes: Any) -> WorkerConfig:
    options: dict[str, Any] = {
        "slots": SLOTS,
        "max_model_len": WINDOW,
        "kv_tokens": 4 * WINDOW,
        **changes,
    }
    return WorkerConfig(model=str(folder), **{"engine_args": {"n_threads": 1}, **options})


PRECISE = {"n_threads": 1, "kv_type": "f32", "flash_attention": False}
"""With 16 bits the scores of a token depend on the batch that computed it."""


async def benches(folder: Path, **changes: Any) -> AsyncIterator[Bench]:
    """One bench."""
    engine: Any = open_engine("llamacpp", config(folder, **changes))
    info = await engine.start()

    def broken() -> None:
        raise RuntimeError("llama_decode returned -3")

    def kill() -> None:
        engine._decoder.step = broken

    yield Bench(engine, info, PROMPT, kill, SLOTS)
    await engine.stop(20.0)


@pytest.fixture
async def bench(tiny: Path) -> AsyncIterator[Bench]:
    async for made in benches(tiny, engine_args=PRECISE):
        yield made


@pytest.fixture
async def real(folder: Path) -> AsyncIterator[Bench]:
    """A bench with a model that writes English."""
    async for made in benches(folder):
        yield made


class TestLlamaCpp(Conformance):
    """The suite of all engines."""


async def test_greedy_text_is_english(real: Bench, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(question, add_special_tokens=False).ids
    deltas = await real.run(real.request(ids, stop_ids=real.info.eos_ids, max_tokens=40))
    assert "Paris" in tokenizer.decode(output(deltas))
    assert deltas[-1].stop_id == tokenizer.token_to_id("<|im_end|>")


async def test_tokenizer_of_the_folder_is_that_of_the_file(folder: Path) -> None:
    """llama.cpp reads the tokenizer from the file, too."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    own = llama_cpp.Llama(str(next(folder.glob("*.gguf"))), vocab_only=True, verbose=False)
    rng = random.Random(3)
    pieces = ["hello", " World", "1234567", "\n\n", "\t", "  ", "é", "日本", "🐙", "don't", "C++"]
    pieces += ["<|im_start|>", "x_y", "…", "'LL", "\r\n"]
    for _ in range(300):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 12)))
        theirs = own.tokenize(text.encode(), add_bos=False, special=True)
        assert tokenizer.encode(text, add_special_tokens=False).ids == theirs, text


async def test_beginning_of_an_open_turn_is_shared(bench: Bench) -> None:
    """Both the newest turn and those before: a fork of a session finds what it has in common."""
    long = [*PROMPT, *PROMPT, *PROMPT]
    first = asyncio.create_task(bench.run(bench.request([*long, 7], max_tokens=200)))
    await asyncio.sleep(0)
    while not bench.engine._decoder.used:  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
    second = await bench.run(bench.request([*long, 8], max_tokens=4))
    assert cached(second) == len(long)
    alone = output(second)
    await first
    await bench.run(bench.request([9] * 50, max_tokens=1))
    assert output(await bench.run(bench.request([*long, 8], max_tokens=4))) == alone


async def test_schema_and_grammar_force_the_output(real: Bench, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    mood = {"type": "object", "properties": {"mood": {"const": "calm"}}, "required": ["mood"]}
    form = OutputFormat("json_schema", {**mood, "additionalProperties": False})
    deltas = await real.run(real.request(guided=form, stop_ids=real.info.eos_ids, max_tokens=100))
    assert json.loads(tokenizer.decode(output(deltas))) == {"mood": "calm"}
    assert deltas[-1].stop_id is not None
    options: dict[str, Any] = {"stop_ids": real.info.eos_ids, "max_tokens": 100}
    deltas = await real.run(real.request(grammar='start: "cat 🐙 " /[0-9]{3}/', **options))
    assert tokenizer.decode(output(deltas)).startswith("cat 🐙 ")
    with pytest.raises(Invalid, match="cannot be kept to"):
        await real.run(real.request(guided=OutputFormat("json_schema", {"type": "nonesuch"})))


async def test_turns_that_outgrow_the_cache_are_paused_and_lose_nothing(tiny: Path) -> None:
    """Each of four turns fits alone, all of them together do not."""
    engine: Any = open_engine(
        "llamacpp", config(tiny, max_model_len=512, kv_tokens=512, engine_args=PRECISE)
    )
    bench = Bench(engine, await engine.start(), PROMPT, kill=lambda: None)
    prompts = [[token, *PROMPT] for token in (101, 102, 103, 104)]
    alone = [await bench.ids(bench.request(prompt, max_tokens=200)) for prompt in prompts]
    together = await asyncio.gather(
        *(bench.ids(bench.request(prompt, max_tokens=200)) for prompt in prompts)
    )
    assert together == alone
    await engine.stop(20.0)


async def test_default_number_of_slots_starts(tiny: Path) -> None:
    """llama.cpp has 256 sequences at most, and some are for ended turns."""
    engine: Any = open_engine("llamacpp", WorkerConfig(model=str(tiny), kv_tokens=WINDOW))
    info = await engine.start()
    assert 200 < info.slots == engine.load().slots < llama_cpp.llama_max_parallel_sequences()
    bench = Bench(engine, info, PROMPT, kill=lambda: None)
    prompts = [[token, *PROMPT[:2]] for token in range(8, info.slots + 100)]
    assert all(
        await asyncio.gather(
            *(bench.ids(bench.request(prompt, max_tokens=3)) for prompt in prompts)
        )
    )
    await engine.stop(20.0)


async def test_model_without_a_gguf_file_is_refused_with_what_to_do(
    tmp_path: Path, folder: Path
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(Invalid, match="has no GGUF file: --engine-args"):
        await open_engine("llamacpp", config(tmp_path)).start()
    for part in (1, 2):
        (tmp_path / f"model-0000{part}-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(EngineFailed, match=r"llama\.cpp cannot load .*00001-of-00002"):
        await open_engine("llamacpp", config(tmp_path)).start()
    with pytest.raises(Invalid, match="there is no file"):
        await open_engine(
            "llamacpp", config(tmp_path, engine_args={"gguf": "/nonexistent"})
        ).start()
    with pytest.raises(Invalid, match=r"engine_args of the llamacpp engine: .*unknown field"):
        open_engine("llamacpp", config(tmp_path, engine_args={"n_thread": 1}))
