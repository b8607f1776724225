"""The environment that the preprocessor sets before it loads the tokenizer."""

import os

import pytest

from schemas.errors import Invalid
from services.preprocessor.model import ModelSetup
from services.preprocessor.service import run
from services.runtime.config import PreprocessorConfig

NAME = "FASTOKENS_BPE_THREADS"


@pytest.mark.parametrize(("setting", "then"), [(None, "1"), ("4", "4")])
async def test_tokenizer_has_no_threads_by_default(
    setting: str | None, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, setting or "")
    if setting is None:
        monkeypatch.delenv(NAME)

    def load(_: PreprocessorConfig) -> None:
        raise ValueError(os.environ.get(NAME))

    monkeypatch.setattr(ModelSetup, "load", load)
    with pytest.raises(Invalid, match=f"^{then}$"):
        await run(PreprocessorConfig(model="m"))
