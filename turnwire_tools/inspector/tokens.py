"""Makes text of token ids, with the tokenizer of its model. Pure."""

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct

from schemas.events import FinishReason
from schemas.frames import TokenFinish
from schemas.requests import ParseContext
from services.tokenization.detokenizer import Vocabulary
from turnwire_tools.inspector.difference import Decode
from turnwire_tools.inspector.turns import InspectedTurn
from turnwire_tools.trajectories.blocks import blocks_of


class Vocabularies:
    """The vocabularies of the served models."""

    def __init__(
        self, of_models: Mapping[str, Vocabulary] = {}, of_others: Vocabulary | None = None
    ) -> None:
        """`of_models`: by served name. `of_others`: for turns of any other model; None: their
        tokens have no text."""
        self._of_models = dict(of_models)
        self._of_others = of_others

    def add(self, of_models: Mapping[str, Vocabulary]) -> None:
        """Adds those of other models, by served name."""
        self._of_models |= of_models

    def of(self, model: str) -> Vocabulary | None:
        """The vocabulary of a model; None: it is unknown."""
        return self._of_models.get(model, self._of_others)

    def decode(self, model: str) -> Decode | None:
        """What makes text of a model's tokens; None: its vocabulary is unknown."""
        vocabulary = self.of(model)
        return None if vocabulary is None else partial(text_of, vocabulary=vocabulary)


class TokenList(Struct, frozen=True):
    """The output tokens of a turn."""

    ids: list[int]
    texts: list[str]
    """One for each; empty without a tokenizer."""
    blocks: list[tuple[int, int]]
    """First and last index of each block's text, the last one excluded; empty without a
    tokenizer."""


def tokens_of(
    turn: InspectedTurn, context: ParseContext | None, vocabulary: Vocabulary | None
) -> TokenList:
    """The output tokens of a turn. Propagates errors of the parser.

    `context`: how the output is parsed; None: unknown, and so are the tokens of its blocks.
    """
    ids = turn.ids.tolist()
    if vocabulary is None:
        return TokenList(ids, [], [])
    texts = [text_of([token], vocabulary) for token in ids]
    if context is None:
        return TokenList(ids, texts, [])

    reason = FinishReason.LENGTH
    if turn.state == "finished":
        reason = FinishReason(turn.finish)
    blocks = blocks_of(turn.id, context, ids, TokenFinish(reason), vocabulary)
    return TokenList(ids, texts, [(block.start, block.end) for block in blocks])


def text_of(ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """The text of tokens, control tokens included; broken characters at the ends become U+FFFD."""
    return b"".join(map(vocabulary.bytes_of, ids)).decode(errors="replace")
