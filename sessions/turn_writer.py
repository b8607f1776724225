"""Writes the turns of random agent sessions: the text and tokens of a model of a family, and what
its client does next.

Every word of a session is unique, so that the text alone shows whether a template renders a turn
whole and in order.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from schemas.frames import TokenFinish
from schemas.ledger import LedgerEntry
from schemas.requests import ParseContext
from services.families.writing import as_json
from services.ledger.signer import EntrySigner
from services.ledger.turn_ledger import TurnLedger
from services.parser.ledger_entry import entries_of
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt
from services.runtime.storage.seal import Sealer
from services.runtime.streams.cursor import Cursor
from services.tokenization.detokenizer import FamilyVocabulary
from sessions.clients import Block, Dialogue

WORD = re.compile(r"(?:(?<![A-Za-z0-9_])|(?<=\\n))w\d+x(?![A-Za-z0-9_])")
"""A word of a session, also after an escaped line break; call ids may have its letters within."""
TOOLS: list[dict[str, Any]] = [
    {
        "name": "run_shell",
        "schema": {
            "type": "object",
            "properties": {
                "cmd": {"type": "string"},
                "timeout_s": {"type": "number"},
                "dry": {"type": "boolean"},
                "lines": {"type": "array", "items": {"type": "string"}},
                "count": {"type": "integer"},
            },
            "required": ["cmd"],
        },
    },
    {"name": "look", "schema": {"type": "object", "properties": {"where": {"type": "string"}}}},
]
_BLANKS = ("", "", "", " ", "\n", "\n\n", "  \n")
_FORMS = (
    *("{} and {}.", "{},\n{}", "{}\n\n- {}", "`{}` < {}", "{} {{{}}}", "{}: é船 {}"),
    '"{}" isn\'t C:\\{}\\n',
)
"""How two words follow each other in prose and code."""
_ITEMS = {"reasoning": "rs", "text": "msg", "tool_use": "fc"}
_CALLS = (1, 1, 1, 2, 3, 4)


@dataclass
class Choices:
    """Bytes as decisions; when they are used up, every decision is the first."""

    data: bytes
    at: int = 0

    def below(self, count: int) -> int:
        """A number from 0 up to `count`, without it."""
        byte = self.data[self.at] if self.at < len(self.data) else 0
        self.at += 1
        return byte % count

    def of(self, options: Any) -> Any:
        """One of `options`."""
        return options[self.below(len(options))]


@dataclass(frozen=True)
class Output:
    """What a model wrote in one turn."""

    ids: list[int]
    text: str
    blocks: list[Block]
    entries: list[LedgerEntry]
    """The turn's own entry, then those of its beginnings; empty: it has none."""

    @property
    def words(self) -> list[str]:
        return WORD.findall(self.text)

    @property
    def calls(self) -> list[Block]:
        return [block for block in self.blocks if block.kind == "tool_use"]


class Model:
    """A model that writes random turns, in its family's form and in tokens of its own choice."""

    def __init__(
        self, setup: ModelSetup, ledger: TurnLedger, choose: Choices, number: int = 0
    ) -> None:
        """`number`: of the session, for the ids of its turns."""
        self.setup = setup
        self.ledger = ledger
        self.choose = choose
        self.sample = choose
        """Chooses tokens."""
        self.think: Callable[[], str] = self.say
        """Makes a thought."""
        self.calls = bool(setup.family.style.call)
        """Whether it sometimes calls tools."""
        self._words = self._counting()
        self._number = number
        self._turns = self._calls = 0
        self._vocabulary = FamilyVocabulary(ledger.model.vocabulary, setup.family)
        self._signer, self._sealer = EntrySigner(b"bench"), Sealer(b"bench")
        tokens = setup.tokenizer.backend.get_added_tokens_decoder().values()
        contents = sorted((token.content for token in tokens), key=len, reverse=True)
        self._added = re.compile("(" + "|".join(map(re.escape, contents)) + ")")

    def word(self) -> str:
        return next(self._words)

    def answer(
        self, prompt: Prompt, *, reason: FinishReason = FinishReason.STOP, keep: float = 1.0
    ) -> Output:
        """Writes one turn. `keep`: the share of its tokens after which it is cut off, with another
        reason than STOP."""
        ids = self.write(prompt)
        return self.read(prompt, ids[: max(int(len(ids) * keep), 1)], reason)

    def write(self, prompt: Prompt) -> list[int]:
        """Returns the tokens of a turn."""
        return self._tokens(self._text(prompt))

    def read(self, prompt: Prompt, ids: list[int], reason: FinishReason) -> Output:
        """Parses a turn that ends after these tokens."""
        parse = self._parsed(prompt, ids, reason)
        signed = [self._signer.sign(entry) for entry in entries_of(parse)]
        text = self.ledger.reader.text_of(parse.stream.ids)
        return Output(list(parse.stream.ids), text, _blocks(parse), signed)

    def say(self) -> str:
        """Returns some words with the punctuation of prose and code."""
        words = [self.word() for _ in range(1 + self.choose.below(4))]
        text = words[0]
        for word in words[1:]:
            text = str(self.choose.of(_FORMS)).format(text, word)
        return text

    def _text(self, prompt: Prompt) -> str:
        style, pieces = self.setup.family.style, []
        closed = not prompt.rendered.in_reasoning and bool(
            prompt.encoded.context and prompt.encoded.context.opening
        )
        thinks = bool(style.reasoning) and not closed
        opened = prompt.rendered.in_reasoning
        for kind in self._plan(thinks):
            if opened and kind != "reasoning":
                pieces.append(self._unopened("") + str(self.choose.of(("", "\n"))))
            if kind == "reasoning":
                said = self.think()
                pieces.append(self._unopened(said) if opened else style.write_reasoning(said))
            elif kind == "text":
                pieces.append(style.write_text(self._blank() + self.say() + self._blank()))
            else:
                pieces.append(self._call())
            opened = False
        text = style.joint.join(pieces)
        if style.joint:  # the token that ends the turn stands where others end a message
            text = text.removesuffix(style.text.partition("{text}")[2])
        stops = [stop for stop in self.setup.tokenizer.token_strings(self.setup.stop_ids) if stop]
        while (end := next((stop for stop in stops if stop in text), None)) is not None:
            text = text[: text.index(end)]  # there the engine stops
        return text

    def _plan(self, thinks: bool) -> list[str]:
        plans: list[list[str]] = [
            ["text"],
            ["reasoning", "text"],
            ["text", "reasoning", "text"],
        ]
        if self.calls:
            calls = ["call"] * int(self.choose.of(_CALLS))
            plans += [
                calls,
                ["reasoning", *calls],
                ["reasoning", "text", *calls],
                ["text", *calls],
                ["reasoning", "call", "reasoning", "call"],
                ["reasoning", "call", "text", "call"],
                ["text", "reasoning", "call"],
                ["call", "text"],
            ]
        plan: list[str] = self.choose.of(plans)
        return [kind for kind in plan if kind != "reasoning" or thinks] or ["text"]

    def _unopened(self, said: str) -> str:
        """Reasoning that the prompt has opened."""
        written = self.setup.family.style.write_reasoning("\x00")
        return said + written.partition("\x00")[2]

    def _call(self) -> str:
        self._calls += 1
        written = self._written_call()
        if ":0<|tool_call" not in written:
            return written
        # Kimi K2 counts its calls over the whole conversation, or forgets to.
        number = self.choose.of((self._calls - 1, self._calls - 1, 0))
        return written.replace(":0<|tool_call", f":{number}<|tool_call")

    def _written_call(self) -> str:
        style = self.setup.family.style
        if self.choose.below(4) == 0:
            return style.write_call("look", {"where": self.say()}) + str(self.choose.of(("", "\n")))
        arguments: dict[str, Any] = {"cmd": self.say()}
        extra = {
            "timeout_s": (2.5, 1.0, 30),
            "dry": (True, False),
            "count": (3, 10**17 + 1),
            "lines": ([], ["a", "b c"]),
        }
        for name, values in extra.items():
            if self.choose.below(3) == 0:
                arguments[name] = self.choose.of(values)
        if style.arguments is as_json and self.choose.below(2):
            ascii_only = bool(self.choose.below(2))
            compact = json.dumps(arguments, separators=(",", ":"), ensure_ascii=ascii_only)
            written = style.write_call("run_shell", {}).replace("{}", compact)
        else:
            written = style.write_call("run_shell", arguments)
        return written + str(self.choose.of(("", "\n")))

    def _blank(self) -> str:
        return str(self.choose.of(_BLANKS))

    def _tokens(self, text: str) -> list[int]:
        """Returns tokens that a model may choose, but a tokenizer would not."""
        ids: list[int] = []
        for piece in self._added.split(text):
            if self._added.fullmatch(piece):
                ids += self.setup.tokenizer.encode(piece)
                continue
            at = 0
            while at < len(piece):
                size = 1 + self.sample.below(12)
                ids += self.setup.tokenizer.encode(piece[at : at + size])
                at += size
        return ids

    def _parsed(self, prompt: Prompt, ids: list[int], reason: FinishReason) -> TurnParse:
        self._turns += 1
        assert prompt.encoded.outcome
        context = ParseContext(
            model=self.setup.card.name,
            family=self.setup.family.name,
            frontend="f",
            prompt_tokens=len(prompt.ids),
            tools=prompt.tools,
            in_reasoning=prompt.rendered.in_reasoning,
            prefix=prompt.rendered.prefix,
            ledger=prompt.encoded.context,
        )
        stream = TurnStream(f"{self._number:08x}{self._turns:016x}", 1, context, "w")
        parse = TurnParse.open(stream, self._vocabulary, self._sealer)
        parse.feed(ids)
        stop_id = self.setup.stop_ids[0] if reason is FinishReason.STOP else None
        parse.finish(TokenFinish(reason, stop_id))
        return parse

    @staticmethod
    def _counting() -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield f"w{number}x"


def start(model: Model) -> Dialogue:
    """A session's first request."""
    return Dialogue(f"You are {model.word()}.", TOOLS, [("user", model.say())])


def go_on(dialogue: Dialogue, output: Output, model: Model) -> None:
    """Continues a session after an answer: runs its calls, or adds a user message; sometimes an
    instruction."""
    dialogue.entries.append(("said", output.blocks))
    if output.calls:
        dialogue.entries.append(("results", [(call.call_id, model.say()) for call in output.calls]))
        if model.choose.below(6) == 0:
            dialogue.entries.append(("system", model.say()))
        elif model.choose.below(6) == 0:
            dialogue.entries.append(("user", model.say()))
    else:
        dialogue.entries.append(("user", model.say()))


def _blocks(parse: TurnParse) -> list[Block]:
    blocks: list[Block] = []
    events, _ = parse.stream.log.read(Cursor())
    begun, said = BlockStart(0, "text"), ""
    for event in events:
        if isinstance(event, BlockStart):
            begun, said = event, ""
        elif isinstance(event, Delta):
            said += event.text
        elif isinstance(event, BlockStop) and (begun.kind != "tool_use" or event.complete):
            item_id = f"{_ITEMS[begun.kind]}_{parse.stream.turn}{event.block:03d}"
            names = begun.name or "", begun.call_id or "", event.seal or ""
            blocks.append(Block(begun.kind, said, *names, item_id))
    return blocks
