"""The environment that the preprocessor sets before it loads the tokenizer."""

import os

import pytest

from schemas.errors import Invalid
from services.preprocessor.model import ModelSetup
from services.preprocessor.service import run
from services.runtime.config import PreprocessorConfig


async def test_tokenizer_has_no_threads_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: PreprocessorConfig) -> None:
        raise ValueError(os.environ["FASTOKENS_BPE_THREADS"])

    monkeypatch.setattr(ModelSetup, "load", load)
    for setting in ("4", "1"):
        monkeypatch.setenv("FASTOKENS_BPE_THREADS", setting)
        if setting == "1":
            monkeypatch.delenv("FASTOKENS_BPE_THREADS")
        with pytest.raises(Invalid, match=f"^{setting}$"):
            await run(PreprocessorConfig(model="m"))
