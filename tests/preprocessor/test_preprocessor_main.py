"""The environment that the preprocessor sets before it loads the tokenizer."""

import os

import pytest

from services.preprocessor.__main__ import main
from services.runtime import entry

NAME = "FASTOKENS_BPE_THREADS"


@pytest.mark.parametrize(("setting", "then"), [(None, "1"), ("4", "4")])
def test_tokenizer_has_no_threads_by_default(setting: str | None, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, setting or "")
    if setting is None:
        monkeypatch.delenv(NAME)
    seen: list[str | None] = []

    def start(*_: object) -> int:
        seen.append(os.environ.get(NAME))
        return 7

    monkeypatch.setattr(entry, "main", start)
    assert main([]) == 7
    assert seen == [then]
