"""Turns of a shard: token streams of texts, and what was parsed of them."""

from typing import Any

import msgspec

from schemas.conversation import ToolSpec
from schemas.events import BlockStart, BlockStop, Delta, Finish, FinishReason, TokenLogprob
from schemas.frames import TokenEntry, TokenFinish
from schemas.requests import ABSENT, ParseContext
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from services.runtime.storage.seal import Sealer
from services.runtime.streams.cursor import Cursor
from services.tokenization.detokenizer import Vocabulary
from tests.kit.byte_tokenizers import byte_level

TOKENIZER = byte_level()
VOCABULARY = Vocabulary(TOKENIZER)
SEALER = Sealer(b"test")
RUN = ToolSpec("run", schema={"properties": {"cmd": {"type": "string"}}})
STOP = TOKENIZER.token_to_id("<|im_end|>")


def ids_of(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return found


def entry(
    at: int,
    ids: list[int],
    *,
    scored: bool,
    turn: str = "t",
    finish: TokenFinish | None = None,
    **context: Any,
) -> TokenEntry:
    options: dict[str, Any] = {"family": "hermes", "prompt_tokens": 3, **context}
    encoded = msgspec.json.encode(ParseContext("m", frontend="f", **options))
    raw = ABSENT if at else msgspec.Raw(encoded)
    logprobs = None
    if scored:
        logprobs = [[(token, -float(at + n)), (token + 1, -0.5)] for n, token in enumerate(ids)]
    return TokenEntry(turn, 1, at, ids, raw, logprobs=logprobs, finish=finish)


def parsed(
    text: str | list[int],
    *,
    cuts: int = 0,
    reason: FinishReason = FinishReason.STOP,
    stop_id: int | None = STOP,
    scored: bool = True,
    **context: Any,
) -> TurnParse:
    """A whole turn, its tokens in entries of `cuts` each (0: all in one)."""
    ids = text if isinstance(text, list) else ids_of(text)
    if scored:
        context.setdefault("logprobs", 1)
    shard = Shard(VOCABULARY, SEALER)
    step = cuts or len(ids)
    for at in range(0, len(ids), step):
        shard.parse(entry(at, ids[at : at + step], scored=scored, **context), "w")
    shard.parse(entry(len(ids), [], scored=scored, finish=TokenFinish(reason, stop_id)), "w")
    return shard.turns["t"]


def events(parse: TurnParse) -> list[Any]:
    return parse.stream.log.read(Cursor())[0]


def scored_blocks(parse: TurnParse) -> list[tuple[str, str, list[TokenLogprob]]]:
    """Each block's kind, text and tokens."""
    found: list[Any] = []
    for event in events(parse):
        if isinstance(event, BlockStart):
            found.append([event.kind, "", []])
        elif isinstance(event, Delta):
            assert event.offset == len(found[-1][1])
            found[-1][1] += event.text
            found[-1][2] += event.logprobs or []
        elif isinstance(event, BlockStop):
            assert event.length == len(found[-1][1])
    return [tuple(block) for block in found]


def finish(parse: TurnParse) -> Finish:
    end = events(parse)[-1]
    assert isinstance(end, Finish)
    return end
