"""The tokenizer of prompts: ids, control tokens, end tokens."""

from pathlib import Path
from threading import Event, Thread

import pytest
from tokenizers import Tokenizer

from schemas.errors import Invalid
from services.preprocessor.model.model_setup import ModelSetup
from services.tokenization.prompt_tokenizer import PromptTokenizer
from services.tokenization.tokenizer_files import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(setup: ModelSetup) -> PromptTokenizer:
    return setup.tokenizer


def test_ids_are_those_of_the_tokenizer(tokenizer: PromptTokenizer, demo_dir: Path) -> None:
    plain = Tokenizer.from_file(str(demo_dir / "tokenizer.json"))
    text = "<|im_start|>user\nété 日本語 🙂<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert tokenizer.encode(text) == plain.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_can_be_left_out(tokenizer: PromptTokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>a<think>b<|im_end|>")
    assert tokenizer.decode(ids) == "<|im_start|>a<think>b<|im_end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>b"


@pytest.mark.parametrize("token_id", [-1, 16_384])
def test_unknown_id_is_refused(tokenizer: PromptTokenizer, token_id: int) -> None:
    with pytest.raises(Invalid, match="vocabulary"):
        tokenizer.decode([1, token_id])


def test_terminator_is_the_last_control_token(tokenizer: PromptTokenizer) -> None:
    assert tokenizer.terminator("<|im_end|>\n") == tokenizer.id_of("<|im_end|>")
    assert tokenizer.terminator("<|im_end|><|endoftext|>") == tokenizer.id_of("<|endoftext|>")
    assert tokenizer.terminator("</think>\n") is None
    assert tokenizer.terminator("") is None


def test_end_ids_of_the_model_precede_those_of_the_tokenizer(demo_dir: Path) -> None:
    loaded = load_tokenizer(str(demo_dir))
    end = loaded.eos_token_id or 0
    assert PromptTokenizer(loaded, eos_ids=[7, end]).eos_ids == (7, end)
    assert PromptTokenizer(loaded).eos_ids == (end,)


def test_other_threads_run_while_a_long_prompt_is_encoded(tokenizer: PromptTokenizer) -> None:
    text = "def f(x):\n    return x + 1  # words and so on\n" * 10_000
    done, ticks = Event(), []

    def watch() -> None:
        while not done.wait(0.001):
            ticks.append(1)

    watcher = Thread(target=watch)
    watcher.start()
    ids = tokenizer.encode(text)
    done.set()
    watcher.join()
    assert len(ids) > 50_000
    assert len(ticks) > 5  # with the interpreter's lock held for all that time: one at most
