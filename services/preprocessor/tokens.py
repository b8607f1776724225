"""Text to token ids and back, for prompts: the Rust tokenizer itself, without transformers in between."""

import re
import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

from schemas.errors import Invalid
from services.preprocessor.encoding import Choice, Encoder
from services.preprocessor.segments import Cuts
from services.preprocessor.tokenizer_files import LoadedTokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")


class _Coder(Protocol):
    def encode(self, text: str, special: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special: bool) -> str: ...
    def token(self, token_id: int) -> str | None: ...
    def token_id(self, token: str) -> int | None: ...


class PromptTokenizer:
    """A model's tokenizer. Thread-safe; encoding releases the interpreter's lock, so a thread pool does help."""

    def __init__(self, tokenizer: LoadedTokenizer, *, eos_ids: Iterable[int] = ()) -> None:
        """`eos_ids`: end-of-sequence ids of the model's generation config, beside the tokenizer's own."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._coder: _Coder = _RustCoder(backend) if isinstance(backend, Tokenizer) else _PythonCoder(tokenizer)
        self._special = {
            token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys((*eos_ids, *own)))
        """End-of-sequence ids, the model's first."""
        self.vocab_size = len(tokenizer)

    def encoder(self, choice: Choice = "auto", cache_bytes: int = 64 << 20) -> Encoder:
        """What encodes rendered prompts, to the same ids as `encode`. `cache_bytes` bounds what it keeps of them.

        Raises ValueError where `choice` is fastokens and that does not do.
        """
        if isinstance(self._coder, _RustCoder):
            return Encoder.load(self._coder.backend, choice=choice, cache_bytes=cache_bytes)
        if choice == "fastokens":
            raise ValueError("fastokens cannot be the tokenizer: the model's own is Python code")
        return Encoder(lambda texts: [array("I", self.encode(text)) for text in texts], cuts=Cuts(()), cache_bytes=0)

    @property
    def backend(self) -> Tokenizer | None:
        """The tokenizer itself; None where that is Python code."""
        return self._coder.backend if isinstance(self._coder, _RustCoder) else None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of `text`. Control tokens in it are taken as such, half surrogate pairs as U+FFFD.

        Rendered prompts hold every control token that they need, the beginning-of-sequence token included: for them
        `add_special_tokens` stays False, as in transformers' own `apply_chat_template`.
        """
        if _SURROGATE.search(text):
            text = _SURROGATE.sub("\ufffd", text)
        return self._coder.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of `ids`. Raises Invalid for an id that is not in the vocabulary."""
        self.check_ids(ids, param="tokens")
        return self._coder.decode(ids, skip_special_tokens)

    def check_ids(self, ids: Iterable[int], *, param: str) -> None:
        """Raises Invalid, naming the field `param`, for an id that is not in the vocabulary."""
        if bad := [token_id for token_id in ids if not 0 <= token_id < self.vocab_size]:
            raise Invalid(f"token id {bad[0]} is not in the vocabulary (0 to {self.vocab_size - 1})", param=param)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own string of each id, as `/tokenize` shows them; "" for an unused id."""
        return [self._coder.token(token_id) or "" for token_id in ids]

    def id_of(self, token: str) -> int | None:
        """The id of a token of the vocabulary; None if there is no such token."""
        return self._coder.token_id(token)

    def terminator(self, closing: str) -> int | None:
        """The id of the last control token in `closing`, the text with which the template ends a turn."""
        found = [(closing.rfind(token), len(token), token_id) for token, token_id in self._special.items()]
        position, _, token_id = max(found, default=(-1, 0, 0))
        return token_id if position >= 0 else None


class _RustCoder:
    """`encode` holds the interpreter's lock while it works, the batch form does not (measured with tokenizers 0.22)."""

    def __init__(self, backend: Tokenizer) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend

    def encode(self, text: str, special: bool) -> list[int]:
        return self.backend.encode_batch_fast([text], add_special_tokens=special)[0].ids

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special)

    def token(self, token_id: int) -> str | None:
        return self.backend.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)


class _PythonCoder:
    """Tokenizers which a model ships as Python code; one call at a time, for they promise nothing about threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def encode(self, text: str, special: bool) -> list[int]:
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=special))

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        with self._lock:
            return str(
                self._tokenizer.decode(list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
            )

    def token(self, token_id: int) -> str | None:
        with self._lock:
            found = self._tokenizer.convert_ids_to_tokens(token_id)
        return found if isinstance(found, str) else None

    def token_id(self, token: str) -> int | None:
        with self._lock:
            found: int | None = self._tokenizer.get_vocab().get(token)
        return found
