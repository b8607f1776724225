"""Text in the middle of a prompt has the tokens that it has there, also with tokenizers that encode
the start of a text differently."""

from itertools import product
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer

from services.families import find_family
from services.ledger.prompt.encode import PromptEncoder
from services.tokenization.encoder import Encoder
from tests.kit.every import for_rows
from tests.kit.tokenizer_zoo import make

BEFORE = "<|im_start|>"


def prompt_encoder(tokenizer: Tokenizer) -> PromptEncoder:
    """The encoder of a model of which only the tokenizer counts."""
    model: Any = SimpleNamespace(
        encoder=Encoder(tokenizer), family=find_family("hermes"), header="", ends=("<|im_end|>",)
    )
    unused: Any = None
    return PromptEncoder(model, unused, unused, unused)


@for_rows(
    [
        *product(
            ("qwen", "byte_level_prefix_space", "metaspace_first"),
            ("file", " file", "\nfile", f"{BEFORE}file", ""),
        )
    ]
)
def test_fragment_has_the_tokens_that_it_has_in_a_prompt(kind: str, text: str) -> None:
    tokenizer = make(kind)

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    fragment = prompt_encoder(tokenizer).fragment(text)
    assert ids(BEFORE + text) == ids(BEFORE) + list(fragment)
