"""Judges what one client received. Pure.

A verdict is never kind in silence: whatever is not the expected answer, byte by byte, has a name
and is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Literal

from tests.chaos.apis import expected_blocks, read_document, read_stream, received_blocks
from tests.chaos.scripts import Block, Kind, Script
from turnwire_tools.clients.answer import Api, ClientAnswer
from turnwire_tools.clients.shared import IllFormed

Verdict = Literal[
    "whole", "reconnected", "refused", "told", "lost", "wrong", "doubled", "ends", "ill-formed"
]  # fmt: skip
"""whole: as expected. reconnected: its frontend's death broke the connection, what had come was a
correct prefix, and the same request sent again was answered as expected. refused: 503 with
Retry-After, and as expected when sent again.
told: a correct prefix and one error event, or an error as the document. lost: not answered to its
end. wrong: any other byte. doubled: a piece came twice. ends: not exactly one terminal event.
ill-formed: against the rules of SSE or of the API."""
KEEP_ALIVES = (b":", b"event: ping")
"""Beginnings of chunks without output."""
Frontend = Literal["serving", "closed", "broken"]
"""closed: it was terminated, drained its connections, and accepted no others. broken: it was
killed, or its drain period was over."""


@dataclass
class Attempt:
    """One request, and all that came back."""

    status: int = 0
    """0: there was no answer."""
    retry_after: str = ""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """With their times."""
    broken: str = ""
    """Why there was no end; "": the response ended properly."""
    late: bool = False
    """The limit was over."""

    @property
    def data(self) -> bytes:
        return b"".join(data for _, data in self.chunks)


@dataclass(frozen=True)
class Judgement:
    """The verdict on one stream."""

    verdict: Verdict
    why: str = ""
    pause_s: float = 0.0
    """Longest time without output in mid-stream."""
    silence_s: float = 0.0
    """Longest time without any byte in mid-stream."""


@dataclass(frozen=True)
class Wanted:
    """What a client is to receive."""

    api: Api
    stream: bool
    script: Script
    tokens: int


def judge(wanted: Wanted, attempts: Sequence[Attempt], frontends: Sequence[Frontend]) -> Judgement:
    """`frontends`: what had become of the frontend of each attempt."""
    verdict: Verdict = "whole"
    why = refusal = ""
    for number, attempt in enumerate(attempts):
        found, why = judge_attempt(wanted, attempt)
        if found == "whole":
            pause, silence = _pauses(wanted, attempts[0])
            return Judgement(verdict, refusal, pause, silence)
        last = number == len(attempts) - 1
        ended = frontends[number]
        nature = ended == "broken" or (ended == "closed" and not attempt.status)
        broken = found == "lost" and attempt.broken and not attempt.late
        if broken and nature and not last:
            verdict = "reconnected"
        elif found == "refused" and not last:
            verdict = "refused" if verdict == "whole" else verdict
            refusal = refusal or why
        else:
            found = "lost" if found == "refused" else found
            return Judgement(found, f"attempt {number + 1}: {why}")
    return Judgement("lost", why or "no attempt was made")


def judge_attempt(wanted: Wanted, attempt: Attempt) -> tuple[Verdict, str]:
    """The verdict on one answer, and its reason."""
    text = attempt.data[:200].decode(errors="replace")
    late = "the limit was over, " if attempt.late else ""
    if attempt.status != 200:
        if attempt.status == 503 and attempt.retry_after and not attempt.broken:
            return "refused", text
        if not wanted.stream and attempt.status in (500, 502, 504) and not attempt.broken:
            return "told", text
        return "lost", f"status {attempt.status or 'none'} {late}{attempt.broken} {text}"
    if attempt.broken and not wanted.stream:
        return "lost", f"{attempt.broken}, a document"
    whole = not attempt.broken
    try:
        if wanted.stream:
            answer = read_stream(wanted.api, attempt.data, whole=whole)
        else:
            answer = read_document(wanted.api, attempt.data)
    except IllFormed as error:
        return "ill-formed", str(error)
    found = _compare(wanted, answer, whole=whole)
    if found[0] == "whole" and not whole:
        return "lost", f"{late}{attempt.broken}, {len(attempt.data)} bytes"
    return found


def _compare(wanted: Wanted, answer: ClientAnswer, *, whole: bool) -> tuple[Verdict, str]:
    """Unless `whole`, the answer is cut off, and may end anywhere."""
    expected = expected_blocks(wanted.api, wanted.script.blocks)
    received = received_blocks(wanted.api, answer, stream=wanted.stream)
    ended = whole and answer.ends == 1 and not answer.problem
    found = compare_blocks(expected, received, ordered=wanted.api != "chat", complete=ended)
    if found[0] != "whole":
        return found
    ids = [block.call_id for block in answer.blocks if block.kind == "call"]
    if len(set(ids)) != len(ids):
        return "wrong", "two calls have one id"
    if answer.ends > 1:
        return "ends", f"{answer.ends} terminal events"
    if answer.problem:
        return "told", answer.problem
    if not whole:
        return "whole", ""
    if not answer.ends:
        return "ends", "the stream ended without a terminal event"
    end = "calls" if wanted.script.calls else "stop"
    if answer.end != end:
        return "wrong", f"ended with {answer.end}, not {end}"
    tokens = answer.usage[1] if answer.usage is not None else 0
    if tokens != wanted.tokens:
        return "wrong", f"{tokens} tokens were counted, not {wanted.tokens}"
    return "whole", ""


def compare_blocks(
    expected: Sequence[Block], got: Sequence[Block], *, ordered: bool, complete: bool
) -> tuple[Verdict, str]:
    """Equal, or, unless `complete`, a prefix; where blocks are not `ordered`, of each kind."""
    kinds: tuple[Kind, ...] = ("reasoning", "text", "call")
    channels = [set(kinds)] if ordered else [{kind} for kind in kinds]
    for channel in channels:
        wanted = _flat([block for block in expected if block.kind in channel])
        found = _flat([block for block in got if block.kind in channel])
        if found == wanted or (not complete and wanted.startswith(found)):
            continue
        pairs = zip(wanted, found, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if len(found) < len(wanted) and wanted.startswith(found):
            return "wrong", f"the end is missing: {len(found)} of {len(wanted)} characters"
        near = f"at {same}: {found[max(0, same - 20) : same + 30]!r}, not {wanted[max(0, same - 20) : same + 30]!r}"
        # Doubled: what comes is an earlier piece again.
        piece = found[same : same + 12]
        if len(piece) == 12 and wanted.find(piece, 0, same) >= 0:
            return "doubled", near
        return "wrong", near
    return "whole", ""


def _flat(blocks: Sequence[Block]) -> str:
    """As one text of which a prefix of blocks has a prefix."""
    return "".join(f"\x1e{block.kind} {block.name}\x1f{block.text}" for block in blocks)


def _pauses(wanted: Wanted, attempt: Attempt) -> tuple[float, float]:
    """Longest time without output, and without any byte."""
    if not wanted.stream or attempt.status != 200:
        return 0.0, 0.0
    outputs = [at for at, data in attempt.chunks if not data.startswith(KEEP_ALIVES)]
    return _longest(outputs), _longest([at for at, _ in attempt.chunks])


def _longest(times: Sequence[float]) -> float:
    return max((after - before for before, after in pairwise(times)), default=0.0)
