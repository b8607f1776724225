"""Each character of a block is traced to the token that wrote it, in every family and every
chunking."""

from collections.abc import Iterable, Sequence
from typing import Any

from schemas.conversation import ToolSpec
from schemas.events import BlockEvent, FinishReason
from services.families import families, open_parser
from services.families.grammar.scanner import escaped
from services.parser.trace import Trace
from tests.kit.every import for_each
from tests.kit.parser_cases import Block, any_cut, case_name, fold, tools, vectors, words

RUN = ToolSpec("run", schema={"properties": {"cmd": {"type": "string"}, "n": {"type": "number"}}})


class Words:
    """A vocabulary in which each piece is a token; its id is its place."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def bytes_of(self, token: int) -> bytes:
        return self.pieces[token].encode()


def traced(
    family: str,
    pieces: Sequence[str],
    tools: list[ToolSpec],
    *,
    reason: FinishReason = FinishReason.STOP,
    **options: Any,
) -> tuple[list[Block], list[list[tuple[int, int]]]]:
    """The blocks, and for each the tokens that it is traced to, as (token, place)."""
    trace = Trace(Words(pieces), 0)  # type: ignore[arg-type]
    options |= {"scanner": trace.scanner, "blocks": trace.blocks}
    parser = open_parser(family, tools=tools, **options)
    trace.match([])
    events: list[BlockEvent] = []
    origins: dict[int, list[tuple[int, int]]] = {}

    def take(new: Iterable[BlockEvent]) -> None:
        new = list(new)
        for event, tokens in zip(new, trace.match(new), strict=True):
            events.append(event)
            origins.setdefault(event.block, []).extend((t.index, t.at) for t in tokens)

    for index, piece in enumerate(pieces):
        trace.add_token(index, piece, b"", [(index, -0.5)])
        take(parser.feed(piece))
    take(parser.finish(reason))
    blocks = fold(events)
    return blocks, [origins.get(index, []) for index in range(len(blocks))]


def check_prose(
    block: Block, origins: list[tuple[int, int]], pieces: Sequence[str], former: int | None
) -> None:
    """The tokens' own characters add up to the block's text, without a hole or an overlap. Its
    first may be those of a token that an earlier block has: `former`."""
    text = block["text"]
    ends = ([at for _, at in origins] + [len(text)])[1:]
    if origins and text[: origins[0][1]] == "<think>":
        # of the prompt, and kept in the text (minimax_m2_append_think)
        former, pieces = 0, ["<think>" + pieces[0], *pieces[1:]]
    if not origins or origins[0][1] != 0:
        assert former is not None, block
        assert text[: origins[0][1] if origins else None] in pieces[former], (block, origins)
    for (token, at), end in zip(origins, ends, strict=True):
        assert at < end, block
        assert text[at:end] in pieces[token], (block, origins, pieces)
    assert [token for token, _ in origins] == sorted({token for token, _ in origins})


def check_arguments(block: Block, origins: list[tuple[int, int]], pieces: Sequence[str]) -> None:
    """A token stands where some of its characters do."""
    text = block["text"]
    assert [token for token, _ in origins] == sorted({token for token, _ in origins})
    assert [at for _, at in origins] == sorted(at for _, at in origins)
    for token, at in origins:
        piece = pieces[token]
        spelled = {escaped(c) for c in piece} | set(piece)
        assert any(text.startswith(c, at) for c in spelled), (piece, at, text)


@for_each(vectors(), name=case_name)
def test_every_vector_is_traced(case: dict[str, Any]) -> None:
    for pieces in (words(case["raw"]), any_cut(case["raw"])):
        blocks, origins = traced(
            case["family"],
            pieces,
            tools(case),
            in_reasoning=case["prompt_ends_in_reasoning"],
            reason=FinishReason(case["finish_reason"]),
        )
        former = None
        for block, tokens in zip(blocks, origins, strict=True):
            if block["type"] == "tool_use":
                check_arguments(block, tokens, pieces)
            else:
                check_prose(block, tokens, pieces, former)
            former = tokens[-1][0] if tokens else former


def test_a_forced_calls_opening_is_not_a_token() -> None:
    family = families()["qwen3_coder"]
    prefix = family.style.call_prefix("run")
    rest = ["\n<parameter=cmd>\n", "ls", " -l", "\n</parameter>\n</function>\n</tool_call>"]
    blocks, origins = traced("qwen3_coder", rest, [RUN], prefix=prefix)
    (block,) = blocks
    assert block["text"] == '{"cmd": "ls -l"}'
    assert [(t, a) for t, a in origins[0] if t in (1, 2)] == [(1, 9), (2, 11)]


def test_half_characters_are_shown_as_what_they_are() -> None:
    class Bytes:
        def bytes_of(self, token: int) -> bytes:
            return [b"\xe8", b"\x88", b"\xb9!"][token]

    trace = Trace(Bytes(), 1)  # type: ignore[arg-type]
    parser = open_parser("plain", scanner=trace.scanner, blocks=trace.blocks)
    trace.add_token(0, "", b"\xe8", [(0, -1.0), (1, -0.5)])
    trace.add_token(1, "", b"\xe8\x88", [(1, -2.0), (0, -0.5)])
    trace.add_token(2, "\u8239!", b"", [(2, -3.0)])
    found = [token for origins in trace.match(parser.feed("\u8239!")) for token in origins]
    assert [(t.token, t.data, t.at) for t in found] == [
        ("\ufffd", b"\xe8", 0),
        ("\ufffd", b"\x88", 0),
        ("\ufffd!", b"\xb9!", 0),
    ]
    assert [top.logprob for top in found[0].top] == [-0.5]
