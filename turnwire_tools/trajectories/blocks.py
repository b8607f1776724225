"""Finds which tokens each block of a turn was made of, by parsing the turn again. Pure."""

import sys
from collections.abc import Sequence

from msgspec.structs import replace

from schemas.events import BlockStart, Delta, FinishReason
from schemas.frames import TokenFinish
from schemas.requests import ParseContext
from services.families import find_family
from services.parser.traced_parse import TracedParse
from services.parser.turn_stream import TurnStream
from services.rollouts.sampled_turn import SampleBlock
from services.runtime.storage.seal import Sealer
from services.tokenization.detokenizer import FamilyVocabulary, Vocabulary

_SEALER = Sealer(b"trajectories")


def blocks_of(
    turn: str,
    context: ParseContext,
    ids: Sequence[int],
    finish: TokenFinish,
    vocabulary: Vocabulary,
) -> list[SampleBlock]:
    """The blocks of a turn's output, in order; offsets count output tokens. Propagates errors of
    the parser.

    `ids`: the output without the end token, which `finish` has.
    """
    traced = replace(context, logprobs=0, ledger=None, prompt_ids=b"")
    stream = TurnStream(turn, 1, traced, "")
    family_vocabulary = FamilyVocabulary(vocabulary, find_family(context.family))
    parse = TracedParse.open(stream, family_vocabulary, _SEALER)
    parse.feed(ids, [[(token, 0.0)] for token in ids])
    if not parse.ended:
        reason = finish.reason
        if reason is FinishReason.CONTEXT:
            reason = FinishReason.LENGTH
        parse.finish(TokenFinish(reason, finish.stop_id))

    blocks: list[SampleBlock] = []
    for event in parse.read(sys.maxsize)[0]:
        if isinstance(event, BlockStart):
            at = blocks[-1].end if blocks else 0
            blocks.append(SampleBlock(event.kind, at, at, event.name, event.call_id))
        elif isinstance(event, Delta) and event.logprobs:
            block = blocks[-1]
            if block.start == block.end:
                block.start = event.logprobs[0].index
            block.end = event.logprobs[-1].index + 1
    return blocks
