"""Converts text to token ids and back, for prompts, by the Rust tokenizer itself."""

import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

from schemas.errors import Invalid
from services.tokenization.data_marks import DataMarks, replace_surrogates
from services.tokenization.encoder import Choice, Encoder
from services.tokenization.segments import Cuts, TokenIds
from services.tokenization.tokenizer_files import LoadedTokenizer


class PromptTokenizer:
    """A model's tokenizer. Thread-safe; encoding releases the interpreter's lock, so that a thread pool helps."""

    def __init__(self, tokenizer: LoadedTokenizer, *, eos_ids: Iterable[int] = ()) -> None:
        """`eos_ids`: end-of-sequence ids of the generation config; the tokenizer's own are added."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self.backend = backend if isinstance(backend, Tokenizer) else None
        """The Rust tokenizer; None for a tokenizer that the model ships as Python code."""
        if self.backend is not None:
            self.backend.no_padding()
            self.backend.no_truncation()
        self._python: Any = tokenizer
        self._lock = threading.Lock()  # Python code may not be thread-safe
        self._special = {
            token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys((*eos_ids, *own)))
        """End-of-sequence ids, the model's first."""
        self.vocab_size = len(tokenizer)

    def encoder(self, choice: Choice = "auto", cache_bytes: int = 64 << 20, marks: DataMarks | None = None) -> Encoder:
        """The encoder of rendered prompts, with the same ids as `encode`, but for marked data. `cache_bytes` bounds its
        cache.

        Raises ValueError where `choice` is fastokens and fastokens cannot encode for this model.
        """
        if self.backend is not None:
            return Encoder.load(self.backend, choice=choice, cache_bytes=cache_bytes, marks=marks)
        if choice == "fastokens":
            raise ValueError("fastokens cannot be the tokenizer: the model's own is Python code")
        return Encoder(
            lambda texts: [array("I", self.encode(text)) for text in texts],
            cuts=Cuts(()),
            cache_bytes=0,
            marks=marks,
            encode_data=self._encode_data,
        )

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of `text`. Control tokens in it become control tokens, lone surrogates U+FFFD.

        Rendered prompts have every control token, the beginning-of-sequence token included: for them
        `add_special_tokens` stays False, as in transformers' `apply_chat_template`.
        """
        text = replace_surrogates(text)
        if self.backend is not None:
            # `encode` holds the interpreter's lock while it works, the batch form does not (tokenizers 0.22).
            return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        with self._lock:
            return list(self._python.encode(text, add_special_tokens=add_special_tokens))

    def _encode_data(self, text: str) -> TokenIds:
        """As `encode` for a tokenizer of Python code, without special tokens."""
        with self._lock:
            return array("I", self._python.encode(text, add_special_tokens=False, split_special_tokens=True))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of `ids`. Raises Invalid for an id that is not in the vocabulary."""
        self.check_ids(ids, param="tokens")
        if self.backend is not None:
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        with self._lock:
            return str(self._python.decode(list(ids), **options))

    def check_ids(self, ids: Iterable[int], *, param: str) -> None:
        """Raises Invalid, naming the field `param`, for an id that is not in the vocabulary."""
        if bad := [token_id for token_id in ids if not 0 <= token_id < self.vocab_size]:
            raise Invalid(f"token id {bad[0]} is not in the vocabulary (0 to {self.vocab_size - 1})", param=param)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's string of each id; "" for an unused id."""
        if self.backend is not None:
            return [self.backend.id_to_token(token_id) or "" for token_id in ids]
        with self._lock:
            found = [self._python.convert_ids_to_tokens(token_id) for token_id in ids]
        return [token if isinstance(token, str) else "" for token in found]

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if it is not in the vocabulary."""
        if self.backend is not None:
            return self.backend.token_to_id(token)
        with self._lock:
            found: int | None = self._python.get_vocab().get(token)
        return found

    def terminator(self, closing: str) -> int | None:
        """The id of the last control token in `closing`, the text with which the template ends a turn."""
        found = [(closing.rfind(token), len(token), token_id) for token, token_id in self._special.items()]
        position, _, token_id = max(found, default=(-1, 0, 0))
        return token_id if position >= 0 else None
