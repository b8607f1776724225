"""Rendering by transformers, which the tests of templates compare with."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def by_transformers() -> Callable[..., str]:
    """Renders as `apply_chat_template`: source, messages, and what else the template gets."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    tokenizer = make(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )

    def render(source: str, messages: list[Any], **variables: Any) -> str:
        text = tokenizer.apply_chat_template(
            messages,
            chat_template=source,
            tokenize=False,
            **{"add_generation_prompt": True, **variables},
        )
        return str(text)

    return render
