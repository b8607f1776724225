"""Broken calls are decoded again from their opener: the client gets the text before it, and then
what the second attempt decodes."""

import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.conversation import ToolSpec
from schemas.events import (
    BlockStart,
    BlockStop,
    BrokenCall,
    Delta,
    Dispatch,
    Finish,
    FinishReason,
    Interrupted,
    OutputTokens,
)
from schemas.frames import TokenEntry, TokenFinish
from schemas.ledger import LedgerContext
from schemas.requests import ParseContext
from schemas.token_ids import pack_ids, unpack_ids
from services.families import Family, find_family, open_parser
from services.families.bare_tools import reduced_json
from services.parser.ledger_entry import entries_of
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from services.runtime.streams.cursor import Cursor, Verdict
from services.tokenization.detokenizer import FamilyVocabulary
from services.worker.output.token_stream import GONE
from tests.families.damage import TOOLS, damaged_turn
from tests.kit.every import for_each, for_rows
from tests.kit.examples import chances
from tests.kit.families import CALLING
from tests.parser.shard_turns import SEALER, VOCABULARY, ids_of

END = 7
"""The id of the end token; the others are numbers of pieces."""


class Pieces:
    """A vocabulary whose tokens are pieces of the turn's own text, cut anywhere."""

    def __init__(self) -> None:
        self.texts = [""] * (END + 1)
        self.parts: dict[int, bytes] = {}

    def ids(self, pieces: Sequence[str]) -> list[int]:
        self.texts += pieces
        return [*range(len(self.texts) - len(pieces), len(self.texts))]

    def hidden(self, _markers: Any) -> frozenset[int]:
        return frozenset()

    def is_special(self, _token: int) -> bool:
        return False

    def bytes_of(self, token: int) -> bytes:
        return self.texts[token].encode()


@dataclass
class Client:
    """What a frontend gets of a turn over all attempts, by the log's rules."""

    chance: random.Random
    cursor: Cursor = field(default_factory=Cursor)
    got: list[Any] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    scored: list[bool] = field(default_factory=list)
    """For each id, whether its log probability came with it."""
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """Block, place and number of each token of a block."""
    interrupted: Interrupted | None = None

    def read(self, parse: TurnParse) -> None:
        room = self.chance.choice((5, 50, 10_000))
        left = 0
        while not left:
            events, left = parse.read(room)
            for event in events:
                self._take(event)

    def _take(self, event: Any) -> None:
        taken = self.cursor.accept(event)
        assert taken is not Verdict.GAP
        if isinstance(taken, Interrupted):
            self.interrupted = taken
        elif isinstance(taken, OutputTokens):
            assert taken.at == len(self.ids)
            self.ids += taken.ids
            self.scored += [
                token is not None for token in taken.logprobs or [None] * len(taken.ids)
            ]
        elif not isinstance(taken, Verdict):
            self.got.append(taken)
            if isinstance(taken, Delta):
                tokens = taken.logprobs or []
                self.places += [(taken.block, token.at, token.index) for token in tokens]

    @property
    def blocks(self) -> list[Any]:
        """Starts, texts, dispatches and ends of the blocks."""
        found: list[Any] = []
        for event in self.got:
            if isinstance(event, Delta) and isinstance(found[-1], str):
                found[-1] += event.text
            else:
                found.append(event.text if isinstance(event, Delta) else event)
        return [event for event in found if not isinstance(event, Finish)]

    @property
    def finish(self) -> Finish:
        last = self.got[-1]
        assert isinstance(last, Finish)
        return last


LEDGER = LedgerContext(b"state", 9, b"head")


def context_of(family: str, **options: Any) -> ParseContext:
    tools = msgspec.json.decode(reduced_json(options.pop("tools", TOOLS)), type=list[ToolSpec])
    settings = {"max_tokens": 10_000, "prompt_ids": pack_ids([1]), "ledger": LEDGER, **options}
    return ParseContext("m", family, "f", 3, tools=tools, **settings)


def decode(
    vocabulary: Any,
    context: ParseContext,
    ids: Sequence[int],
    client: Client,
    *,
    resumed: int = 0,
    stop_id: int | None = END,
    reason: FinishReason = FinishReason.STOP,
    dies: bool = False,
) -> TurnParse:
    """One attempt, in entries of any size, read at any time. `dies`: its worker does."""
    shard = Shard(vocabulary, SEALER)
    at = 0
    raw = msgspec.Raw(msgspec.json.encode(context))
    while at < len(ids) or not at:
        size = max(client.chance.choice((1, 1, 2, 9)), resumed - at)
        new = list(ids[at : at + size])
        rows = None
        if context.logprobs is not None:
            rows = [[(one, -0.5)] * (number >= resumed) for number, one in enumerate(new, at)]
        shard.parse(TokenEntry("t", 1, at, new, raw, cached=2, logprobs=rows), "w")
        at += max(size, 1)
        if client.chance.random() < 0.5:
            client.read(shard.turns["t"])
    scores = [(END, -0.5)] if context.logprobs is not None and stop_id else None
    finish = GONE if dies else TokenFinish(reason, stop_id, logprobs=scores)
    shard.parse(TokenEntry("t", 1, len(ids), finish=finish), "w")
    client.read(shard.turns["t"])
    return shard.turns["t"]


def cut(text: str, chance: random.Random) -> list[str]:
    pieces: list[str] = []
    while text:
        size = chance.choice((1, 2, 3, 5, 12))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def prose_of(family: Family, chance: random.Random) -> str:
    """Something before the call, as far as the family has a form for it."""
    kinds = chance.choice(("", "text", "thought", "both")) if not family.style.joint else ""
    prose = ""
    if kinds in ("thought", "both") and family.think:
        prose += family.style.write_reasoning("Hm, 1 < 2.")
    if kinds in ("text", "both"):
        prose += chance.choice(("I look [now].", "So: ", "Grüße, a < b\n\n", "x"))
    return prose


@for_each(CALLING)
def test_client_gets_the_text_before_the_opener_and_the_second_attempt(family: Family) -> None:
    """Also where the opener is inside of a token, and the second worker dies, too."""
    for chance in chances(f"again {family.name}", 120, quick=1):
        turn = damaged_turn(family, chance)
        prose = prose_of(family, chance)
        vocabulary = Pieces()
        first = vocabulary.ids(cut(prose + turn.raw, chance))
        client = Client(chance)
        stop_id = chance.choice((None, END))
        options: dict[str, Any] = {"logprobs": chance.choice((None, 0))}
        rule = chance.choice(("syntax", "schema"))
        checked = context_of(family.name, check_calls=rule, **options)
        plain = context_of(family.name, **options)
        decode(vocabulary, checked, first, client, stop_id=stop_id)

        output = first
        discarded = kept = 0
        if client.interrupted is not None:
            call = client.interrupted.broken_call
            assert call is not None
            before = unpack_ids(client.interrupted.token_ids)
            kept = len(before)
            assert before == first[:kept] == client.ids
            assert not [event for event in client.got if isinstance(event, Dispatch)]
            unrepeated = deepcopy(client)
            for event in client.interrupted.rest:
                unrepeated._take(event)
            assert unrepeated.finish.usage.output == kept + call.tokens == len(unrepeated.ids)
            ids = first[: kept + call.tokens]
            ended_by = END if len(unrepeated.ids) > len(ids) else None
            outcomes = []
            for reason in (FinishReason.STOP, FinishReason.LENGTH):
                sent = Client(chance)
                decode(vocabulary, plain, ids, sent, stop_id=ended_by, reason=reason)
                assert unrepeated.ids == sent.ids
                assert unrepeated.scored == sent.scored
                outcomes.append(sent.blocks)
            assert unrepeated.blocks in outcomes
            output = before + vocabulary.ids(cut(second_text(family, chance), chance))
            again = replace(checked, broken_call=call)
            if chance.random() < 0.3:
                half = chance.randint(kept, len(output))
                decode(vocabulary, again, output[:half], client, resumed=kept, dies=True)
                assert client.interrupted.broken_call is None
                assert unpack_ids(client.interrupted.token_ids) == output[:half]
            parse = decode(vocabulary, again, output, client, resumed=kept, stop_id=stop_id)
            discarded = call.tokens
            for entry in entries_of(parse)[:1]:
                assert entry.ids.startswith(pack_ids(before))

        whole = Client(chance)
        expected = decode(vocabulary, plain, output, whole, stop_id=stop_id)
        assert client.blocks == whole.blocks, (turn, prose)
        assert client.ids == whole.ids == output + [END] * (stop_id is not None)
        assert client.scored == whole.scored
        # A block may begin in the last token that was kept.
        assert [place for place in whole.places if place not in client.places] in (
            [],
            [place for place in whole.places if place[2] == kept - 1],
        )
        usage = client.finish.usage
        assert (usage.output, usage.discarded) == (len(client.ids) + discarded, discarded)
        assert replace(client.finish, usage=whole.finish.usage) == whole.finish
        if client.interrupted is not None:
            assert entries_of(parse) == entries_of(expected)


def second_text(family: Family, chance: random.Random) -> str:
    """What is written after the kept tokens: a good call, a broken one, or text."""
    good = family.style.write_call("bash", {"command": "ls"})
    return chance.choice((good, good, damaged_turn(family, chance).raw, "No call.", "\n\nWell."))


HERMES = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
QWEN = (
    "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
)
HARMONY = (
    "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.bash <|constrain|>json<|message|>{"command": "ls"}<|call|>'
)
STRICT = ToolSpec(
    "bash",
    schema={
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
        "required": ["command"],
    },
)


def first_attempt(
    family: str, text: str, *, reason: FinishReason = FinishReason.STOP, **options: Any
) -> tuple[Client, TurnParse]:
    chance = random.Random(text)
    client = Client(chance)
    options = {"check_calls": "syntax", "tools": [STRICT], **options}
    vocabulary = Pieces()
    ids = vocabulary.ids(cut(text, chance))
    parse = decode(vocabulary, context_of(family, **options), ids, client, reason=reason)
    return client, parse


def cause(family: str, text: str, **options: Any) -> str:
    """Why a call is decoded again; "": none is."""
    client, parse = first_attempt(family, text, **options)
    if client.interrupted is None:
        assert isinstance(client.got[-1], Finish)
        return ""
    call = client.interrupted.broken_call
    assert call is not None
    assert parse.blocks.broken_calls() == [call.cause]
    return call.cause


@for_rows(
    [
        ("hermes", HERMES, ""),
        ("hermes", HERMES.replace("bash", "bush"), "unknown_tool"),
        ("hermes", HERMES.replace('"name"', '"nme"'), "unreadable"),
        ("hermes", HERMES.replace('"ls"', "ls"), "unreadable"),
        ("hermes", "<tool_call>\nls -la\n</tool_call>", "unreadable"),
        ("hermes", HERMES[:-20], "unfinished"),
        ("hermes", HERMES[:20], "unfinished"),
        ("hermes", HERMES[:12], "unfinished"),
        ("hermes", "Write `<tool_call>` before it.", ""),
        ("hermes", "```\n<tool_call>\n{}\n</tool_call>\n```\nis the form.", ""),
        ("qwen3_coder", QWEN, ""),
        ("qwen3_coder", QWEN.replace("=bash", "=bush"), "unknown_tool"),
        ("qwen3_coder", QWEN.replace("<parameter=command>", "<parameter>"), "unreadable"),
        ("qwen3_coder", QWEN[:-45], "unfinished"),
        ("gpt_oss", HARMONY, ""),
        ("gpt_oss", HARMONY.replace("bash", "bush"), "unknown_tool"),
        ("gpt_oss", HARMONY.replace('"ls"', "ls"), "unreadable"),
        ("gpt_oss", HARMONY[:-12], "unfinished"),
        ("llama3_json", '{"name": "bash", "parameters": {"command": "ls"}}', ""),
        ("llama3_json", '{"name": "Ann", "age": 3}', ""),
        ("llama3_json", '{"name": "bash", "parameters": {"command": ls}}', "unreadable"),
        ("pythonic", "[1, 2, 3]", ""),
        ("pythonic", "[bash(command=ls)]", "unreadable"),
    ]
)
def test_cause_of_a_broken_call(family: str, text: str, expected: str) -> None:
    assert cause(family, text) == expected
    before = "" if family == "gpt_oss" else "So.\n"
    assert cause(family, f"{before}{text}\n") in (expected, "")
    assert cause(family, text, check_calls="") == ""


def test_call_that_is_cut_off_is_not_decoded_again() -> None:
    client, parse = first_attempt("hermes", HERMES[:-20], reason=FinishReason.LENGTH)
    assert client.finish.reason is FinishReason.LENGTH
    assert parse.blocks.broken_calls() == []
    assert [event for event in client.got if isinstance(event, BlockStop)] != []


@for_rows(
    [
        ('{"command": "ls"}', ""),
        ('{"command": "ls", "timeout": 3}', ""),
        ('{"command": "ls", "timeout": 3.0}', ""),
        ('{"command": "ls", "more": 3}', ""),
        ('{"command": "ls", "timeout": 3.5}', "schema"),
        ('{"command": "ls", "timeout": "3"}', "schema"),
        ('{"command": ["ls"]}', "schema"),
        ('{"timeout": 3}', "schema"),
        ("{}", "schema"),
    ]
)
def test_schema_demands_members_and_types(arguments: str, expected: str) -> None:
    text = HERMES.replace('{"command": "ls"}', arguments)
    assert cause("hermes", text, check_calls="schema") == expected
    assert cause("hermes", text) == ""


def test_call_of_a_tool_that_may_not_be_called_is_decoded_again() -> None:
    tools = [STRICT, ToolSpec("ping")]
    assert cause("hermes", HERMES, tools=tools, allowed=["ping"]) == "unknown_tool"
    assert cause("hermes", HERMES, tools=tools, allowed=["bash"]) == ""


def test_whole_call_is_sent_with_its_last_token() -> None:
    """Nothing of it before; what follows is sent as it is written, also if it is broken."""
    broken = HERMES.replace("bash", "bush")
    vocabulary: Any = Pieces()
    client = Client(random.Random(0))
    pieces = ["Look", ".", "\n", *HERMES, "\n", *broken]
    ids = vocabulary.ids(pieces)
    shard = Shard(vocabulary, SEALER)
    raw = msgspec.Raw(msgspec.json.encode(context_of("hermes", check_calls="syntax")))
    whole = 3 + len(HERMES)
    for at, token in enumerate(ids):
        shard.parse(TokenEntry("t", 1, at, [token], raw), "w")
        client.read(shard.turns["t"])
        calls = [event for event in client.got if isinstance(event, Dispatch)]
        kinds = [event.kind for event in client.got if isinstance(event, BlockStart)]
        assert bool(calls) == (at + 1 >= whole)
        if at + 1 < whole:
            assert kinds == ["text"]
            assert len(client.ids) <= 3
        else:
            assert len(client.ids) == at + 1
    shard.parse(TokenEntry("t", 1, len(ids), finish=TokenFinish(FinishReason.STOP, END)), "w")
    client.read(shard.turns["t"])
    assert client.interrupted is None
    assert shard.turns["t"].blocks.broken_calls() == ["unknown_tool"]
    assert kinds == ["text", "tool_use", "tool_use"]


def test_broken_call_in_a_turn_without_room_for_another_is_sent() -> None:
    text = "So." + HERMES.replace("bash", "bush")
    pieces = [*text]
    name_ends = text.index("bush") + len('bush"')
    for room, again in ((3, False), (2 * (name_ends - 3) + 20, True)):
        vocabulary = Pieces()
        client = Client(random.Random(0))
        context = context_of("hermes", check_calls="syntax", max_tokens=len(pieces) + room)
        decode(vocabulary, context, vocabulary.ids(pieces), client)
        assert (client.interrupted is not None) == again


def test_second_broken_call_is_sent() -> None:
    text = HERMES.replace("bash", "bush")
    client, _ = first_attempt(
        "hermes", text, broken_call=BrokenCall("unreadable", tokens=30, cached=1)
    )
    assert client.interrupted is None
    usage = client.finish.usage
    assert usage.discarded == 30
    assert usage.output == 30 + len(client.ids)
    assert usage.cached == 1, "the first attempt computed the rest of the prompt"


def test_forced_call_is_decoded_again_from_the_start() -> None:
    prefix = '<tool_call>\n{"name": "bash", "arguments": {'
    rest = '"command": ls}}\n</tool_call>'
    client, _ = first_attempt("hermes", rest, prefix=prefix)
    assert client.interrupted is not None
    assert (client.interrupted.token_ids, client.got) == (b"", [])


def test_stop_strings_are_searched_before_and_not_inside_the_call() -> None:
    broken = HERMES.replace("bash", "bush")
    assert cause("hermes", f"So STOP{broken}", stop=["STOP"]) == ""
    client, _ = first_attempt("hermes", f"So ST{broken}", stop=["STOP"])
    assert client.interrupted is not None
    assert client.blocks[1:] == ["So "]


def test_plain_text_and_arguments_skip_the_parser() -> None:
    """With a real tokenizer, text and the values of a call take the short way; the result is the
    same."""
    text = "Look at it, now. " * 3 + HERMES.replace("ls", "echo a b c " * 20)
    for raw, broken in ((text, False), (text.replace("bash", "bush"), True)):
        client = Client(random.Random(1))
        ids = ids_of(raw)
        context = context_of("hermes", check_calls="syntax", prompt_ids=b"")
        shard = Shard(VOCABULARY, SEALER)
        encoded = msgspec.Raw(msgspec.json.encode(context))
        for at, token in enumerate(ids):
            step = TokenEntry("t", 1, at, [token], encoded if not at else msgspec.Raw(b"null"))
            parse = shard.turns.get("t")
            if parse is None or not parse.fast.append(step):
                shard.parse(step, "w")
            parse = shard.turns["t"]
            unread = parse.fast.next_entry(1000)
            if unread is None:
                client.read(parse)
                parse.enter_fast_path()
            else:
                for event in unread[0].events:
                    client._take(event)
        assert (client.interrupted is not None) == broken
        if client.interrupted is not None:
            kept = unpack_ids(client.interrupted.token_ids)
            detokenizer = FamilyVocabulary(VOCABULARY, find_family("hermes")).open()
            assert detokenizer.feed(kept) == "Look at it, now. " * 3
        else:
            assert [event.name for event in client.got if isinstance(event, Dispatch)] == ["bash"]


def test_kept_tokens_end_before_the_opener() -> None:
    """All of them are kept that end before it, and no other; unless one with text for the client
    has its beginning."""
    call = HERMES.replace("bash", "bush")
    for chance in chances("kept", 60, quick=20):
        prose = chance.choice(("", "Look.", "Look.\n\n", "a < b"))
        vocabulary = Pieces()
        pieces = cut(prose + call, chance)
        ids = vocabulary.ids(pieces)
        client = Client(chance)
        decode(vocabulary, context_of("hermes", check_calls="syntax"), ids, client)
        assert client.interrupted is not None
        kept = client.interrupted.token_count
        length = len("".join(pieces[:kept]))
        if length > len(prose):
            length -= len(pieces[kept - 1])
            assert prose[length:].strip()
        else:
            assert len("".join(pieces[: kept + 1])) > len(prose)
        assert length <= len(prose)


def test_parser_counts_calls_that_it_gives_up() -> None:
    parser = open_parser("hermes", tools=[STRICT])
    parser.feed("<tool_call>\nls\n</tool_call>\n" + HERMES.replace('"ls"', "ls"))
    assert parser.broken_calls == 2
