"""Converts prompts to token ids and back, with the Rust tokenizer."""

from collections.abc import Iterable, Sequence

from schemas.errors import Invalid
from services.tokenization.data_marks import replace_surrogates
from services.tokenization.tokenizer_files import LoadedTokenizer


class PromptTokenizer:
    """A model's tokenizer. Thread-safe; encoding releases the interpreter's lock, so that a thread
    pool helps."""

    def __init__(self, tokenizer: LoadedTokenizer, *, eos_ids: Iterable[int] = ()) -> None:
        """`eos_ids`: end-of-sequence ids of the generation config; the tokenizer's own are
        added."""
        self.backend = tokenizer.backend
        """The Rust tokenizer."""
        self.backend.no_padding()
        self.backend.no_truncation()
        added = tokenizer.added_tokens_decoder
        self.added = {token.content: token_id for token_id, token in added.items()}
        """The ids of the added tokens, at which a text is split first."""
        self._special = {
            token.content: token_id for token_id, token in added.items() if token.special
        }
        if tokenizer.eos_token_id is not None:
            eos_ids = [*eos_ids, tokenizer.eos_token_id]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(eos_ids))
        """End-of-sequence ids, the model's first."""
        self.vocab_size = len(tokenizer)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of `text`. Control tokens in it become control tokens, lone surrogates U+FFFD.

        Rendered prompts have every control token, the beginning-of-sequence token included: for
        them `add_special_tokens` stays False, as in transformers' `apply_chat_template`.
        """
        # `encode` holds the interpreter's lock while it works, the batch form does not (tokenizers
        # 0.22).
        texts = [replace_surrogates(text)]
        return self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)[0].ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of `ids`. Raises Invalid for an id that is not in the vocabulary."""
        self.check_ids(ids, param="tokens")
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def check_ids(self, ids: Iterable[int], *, param: str) -> None:
        """Raises Invalid, naming the field `param`, for an id that is not in the vocabulary."""
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise Invalid(
                    f"token id {token_id} is not in the vocabulary (0 to {self.vocab_size - 1})",
                    param=param,
                )

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's string of each id; "" for an unused id."""
        return [self.backend.id_to_token(token_id) or "" for token_id in ids]

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if it is not in the vocabulary."""
        return self.backend.token_to_id(token)

    def terminator(self, closing: str) -> int | None:
        """The id of the last control token in `closing`, the text with which the template ends a
        turn."""
        places = [
            (closing.rfind(token), len(token), token_id)
            for token, token_id in self._special.items()
        ]
        position, _, token_id = max(places, default=(-1, 0, 0))
        return token_id if position >= 0 else None
