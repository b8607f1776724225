"""`python -m bench.prepare`: what the preprocessor adds to a prompt, beside rendering and tokenizing all of it.

One process, one thread, no bus: from the bytes of a `TurnRequest` to those of a `GenerateRequest`, as
`services/preprocessor` does it, three ways in turn: in parts with fastokens, in parts with tokenizers, and whole. All
three give the same ids, or the run fails. `--write` puts the table into README.md and the figures into `results/`.
"""

import argparse
import gc
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.apis import APIS
from bench.prepare_ledger import play
from bench.prompts import make_body, make_prompt
from bench.report import RESULTS, Machine, now, this_machine
from bench.stats import Spread, spread
from schemas.conversation import Call, Conversation, Reasoning, Result, Text, ToolSpec, Turn
from schemas.frames import TurnRequest, encode_generate, pack_ids
from services.frontend.apis.messages.request import parse
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt.assembly import Prompt, PromptDraft
from services.preprocessor.prompt.generation import generate_request
from services.preprocessor.prompt.history import History
from services.preprocessor.request_decoder import RequestDecoder
from services.runtime.config import PreprocessorConfig
from services.tokenization.encoder import Encoder, encode_without_added_tokens
from services.tokenization.segments import Cuts, TokenIds
from turnwire_tools.script.demo_model import build_demo_model

README: Final = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- bench.prepare -->", "<!-- /bench.prepare -->"
WINDOW: Final = 10
"""Turns on either side of the one for which a figure is given."""
TURNS: Final = (20, 50, 100, 150, 190)
PARTS: Final = ("decode", "assemble", "send", "keep")
_encode = msgspec.json.Encoder().encode


class Cost(msgspec.Struct, frozen=True):
    """One request, in ms of CPU: of all threads, though there is one."""

    decode: float
    assemble: float
    """Strip, adapt, render, tokenize, check."""
    send: float
    """Pack the ids and encode the messages."""
    keep: float = 0.0
    """What the next prompts share, kept when the first token has been sent."""

    @property
    def total(self) -> float:
        """Until the request is sent."""
        return self.decode + self.assemble + self.send


class Row(msgspec.Struct, frozen=True):
    """A case, done in one way: ms. The four parts are medians; `total` is without `keep`."""

    case: str
    way: str
    requests: int
    tokens: int
    total: Spread
    decode: float
    assemble: float
    send: float
    keep: float


class Run(msgspec.Struct, frozen=True):
    started: str
    machine: Machine
    rows: list[Row]


class Way(NamedTuple):
    setup: ModelSetup
    decode: Callable[[bytes], TurnRequest]


def open_ways(model: Path) -> dict[str, Way]:
    """The ways to prepare, each with empty caches of its own. The last one is the plain one."""
    setup = ModelSetup.load(PreprocessorConfig(model=str(model)))
    tokenizer, marks = setup.tokenizer, setup.encoder.marks

    def encode(texts: list[str]) -> list[TokenIds]:
        return [array("I", tokenizer.encode(text)) for text in texts]

    data = partial(encode_without_added_tokens, tokenizer.backend)
    plain = Encoder(encode, cuts=Cuts(()), cache_bytes=0, marks=marks, encode_data=data)
    whole = History(setup.template, setup.traits, max_bytes=0)
    whole.turn_off("for comparison")
    ours = History(setup.template, setup.traits, max_bytes=256 << 20)
    return {
        f"in parts, {setup.encoder.name}": _in_parts(setup),
        "in parts, tokenizers": _in_parts(
            replace(setup, encoder=tokenizer.encoder("tokenizers", marks=marks), history=ours)
        ),
        "whole, tokenizers": Way(
            replace(setup, encoder=plain, history=whole),
            msgspec.json.Decoder(TurnRequest).decode,
        ),
    }


def _in_parts(setup: ModelSetup) -> Way:
    decoder = RequestDecoder(256 << 20)
    return Way(setup, lambda data: decoder.decode(data, TurnRequest))


def prepare(data: bytes, way: Way) -> tuple[Cost, Prompt]:
    """One request."""
    began = time.process_time()
    request = way.decode(data)
    decoded = time.process_time()
    prompt = PromptDraft(request.conversation, way.setup).prompt()
    assembled = time.process_time()
    packed = pack_ids(prompt.ids)
    family = way.setup.family.name
    encode_generate(
        generate_request(
            request, prompt, packed, model="demo", family=family, parser="parser", salt=None, timeout_s=None
        )
    )
    sent = time.process_time()
    if prompt.keep is not None:
        prompt.keep()
    done = time.process_time()
    times = began, decoded, assembled, sent, done
    return Cost(*((end - start) * 1e3 for start, end in pairwise(times))), prompt


def large(kind: str, count: int) -> Iterator[bytes]:
    """Requests of 52,000 tokens, by Claude Code's body. `tail`: a known prefix, a new end; `fresh`: nothing known."""
    body = make_body(APIS["messages"], "demo", size="large", kind=kind, play="text n=16")  # type: ignore[arg-type]
    for number in range(count):
        (conversation,) = parse(body(number), {}).conversations
        yield _encode(TurnRequest(f"turn{number}", "frontend", conversation))


def session(turns: int) -> Iterator[bytes]:
    """An agent loop: each turn of the model has reasoning, text and a call of the same size."""
    prompt = make_prompt("large", "same", "")
    system, tools = (
        [Text(prompt.system[:20_000])],
        [ToolSpec(t.name, t.description, t.schema) for t in prompt.tools[:5]],
    )
    pieces = [prompt.system[at : at + 700] for at in range(20_000, len(prompt.system) - 700, 700)]
    said = [Turn("user", [Text("Please mend the tests.")])]
    for number in range(turns):
        call = Call(f"toolu_{number:06}", "read_file", f'{{"path": "src/module_{number}.py"}}')
        thought = Reasoning(pieces[(3 * number) % len(pieces)][:300])
        result = Result(call.call_id, [Text(pieces[(3 * number + 1) % len(pieces)])])
        said += [Turn("assistant", [thought, Text("I will look at it."), call]), Turn("tool", [result])]
        conversation = Conversation("demo", list(said), system=system, tools=tools)
        yield _encode(TurnRequest(f"turn{number}", "frontend", conversation))


def measure(model: Path, requests: int) -> list[Row]:
    """All cases, every way. Raises SystemExit where two ways differ in an id."""
    found: list[Row] = []
    for case, kind in (("52,000 tokens, known prefix, new tail", "tail"), ("52,000 tokens, first seen", "fresh")):
        ways, bodies = open_ways(model), list(large(kind, requests + 1))
        costs = run(bodies, ways, set(range(len(bodies))))
        found += [row(case, way, costs[way][1:]) for way in ways]
    ways, bodies = open_ways(model), list(session(TURNS[-1] + WINDOW))
    costs = run(bodies, ways, {turn + step for turn in TURNS for step in (-1, 0, 1)})
    for turn in TURNS:
        around = slice(turn - WINDOW, turn + WINDOW)
        found += [row(f"turn {turn} of a session", way, costs[way][around]) for way in ways]
    return found


def measure_ledger(model: Path) -> list[Row]:
    """The session with the turn ledger, for the demo model: what its turns are made of is known here."""
    way, how = next(iter(open_ways(model).items()))
    bodies = list(session(TURNS[-1] + WINDOW))
    costs = play((how.decode(body) for body in bodies), how.setup)
    measured = [(Cost(0.0, cost, 0.0), tokens) for cost, tokens in costs]
    return [
        row(f"turn {turn} of a session", f"{way}, ledger: assemble only", measured[turn - WINDOW : turn + WINDOW])
        for turn in TURNS
    ]


def run(
    bodies: Sequence[bytes], ways: Mapping[str, Way], plain_at: Collection[int]
) -> dict[str, list[tuple[Cost, int] | None]]:
    """Cost and size of every prompt; in the last, plain way only of those in `plain_at`."""
    *_, plain = ways
    found: dict[str, list[tuple[Cost, int] | None]] = {way: [] for way in ways}
    gc.collect()
    for at, body in enumerate(bodies):
        seen: set[bytes] = set()
        for way, how in ways.items():
            if way == plain and at not in plain_at:
                found[way].append(None)
                continue
            cost, prompt = prepare(body, how)
            found[way].append((cost, len(prompt.ids)))
            seen.add(pack_ids(prompt.ids))
        if len(seen) != 1:
            raise SystemExit(f"two ways differ in the ids of request {at}")
    return found


def row(case: str, way: str, measured: Sequence[tuple[Cost, int] | None]) -> Row:
    known = [one for one in measured if one is not None]
    total = spread((cost.total for cost, _ in known), digits=3)
    assert total is not None
    parts = [statistics.median(getattr(cost, part) for cost, _ in known) for part in PARTS]
    return Row(case, way, len(known), known[len(known) // 2][1], total, *parts)


def table(found: Run) -> str:
    """The rows as Markdown."""
    lines = [
        f"ms of CPU per request until it is sent (on a free core: the time), and behind it (keep). {found.started}, "
        f"Python {found.machine.python}, "
        f"{found.machine.processor}, {found.machine.cores} cores (load {found.machine.load_before} at the start).",
        "",
        "| case | way | tokens | p50 | p95 | decode | assemble | send | keep |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found.rows:
        parts = " | ".join(f"{getattr(one, part):.2f}" for part in PARTS)
        lines.append(
            f"| {one.case} | {one.way} | {one.tokens:,} | **{one.total.p50:.2f}** | {one.total.p95:.2f} | {parts} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs all cases and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.prepare", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--requests", type=int, default=40, help="large prompts of each kind")
    parser.add_argument("--write", action="store_true", help="write the table and the figures")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or build_demo_model(Path(folder) / "turnwire-demo")
        measured = measure(model, options.requests) + ([] if options.model else measure_ledger(model))
        found = Run(now(), this_machine(), measured)
    print(table(found))
    if options.write:
        name = found.started.replace(":", "").replace("-", "")
        (RESULTS / f"{name}-prepare.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
        )
        text = README.read_text(encoding="utf-8")
        start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
        README.write_text(f"{text[:start]}\n\n{table(found)}\n{text[stop:]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
