"""A turn that is parsed: log probabilities that reach the frontend at their characters, stop strings,
calls that are barred, raw completions."""

from itertools import product
from typing import Any

from schemas.conversation import ToolSpec
from schemas.events import Dispatch, Finish, FinishReason, OutputTokens, PromptImage, TokenLogprob
from schemas.frames import TokenFinish
from schemas.ledger import LedgerContext
from schemas.token_ids import pack_ids
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from tests.kit.every import for_each, for_rows
from tests.parser.shard_turns import (
    RUN,
    SEALER,
    STOP,
    VOCABULARY,
    entry,
    events,
    finish,
    ids_of,
    parsed,
    scored_blocks,
)

PNG = PromptImage("ab" * 32, 1, 2)


def test_prepared_has_opening_and_images_with_the_ids() -> None:
    ledger = LedgerContext(b"state", 9, b"head", opening="<think>\n")
    prompt = pack_ids([1, 2, 3])
    parse = parsed("Hi", prompt_ids=prompt, ledger=ledger, images=[PNG], scored=False)
    prepared = parse.stream.announce("p")
    assert (prepared.prompt_ids, prepared.opening) == (prompt, "<think>\n")
    assert prepared.images == [PNG]
    assert parsed("Hi", prompt_ids=prompt, scored=False).stream.announce("p").opening == ""
    assert parsed("Hi", ledger=ledger, scored=False).stream.announce("p").opening == ""


@for_rows([*product((0, 1, 3), (True, False))])
def test_each_token_has_its_place_in_the_output(cuts: int, has_ids: bool) -> None:
    raw = "Hm.\n</think>\n\nGrüße, 船."
    ids = ids_of(raw)
    prompt = pack_ids([1]) if has_ids else b""
    parse = parsed(raw, cuts=cuts, prompt_ids=prompt, in_reasoning=True)
    for _, _, tokens in scored_blocks(parse):
        assert [token.data for token in tokens] == [
            VOCABULARY.bytes_of(ids[token.index]) for token in tokens
        ]
    reported = [event for event in events(parse) if isinstance(event, OutputTokens)]
    places = [token.index for event in reported for token in event.logprobs or [] if token]
    assert places == ([*range(len(ids))] if has_ids else [])


def spelled(tokens: list[TokenLogprob]) -> bytes:
    return b"".join(token.data for token in tokens)


def test_each_block_has_its_own_tokens() -> None:
    raw = 'Hm.\n</think>\n\nGrüße, 船 🌊.\n<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
    thought, text, call = scored_blocks(parsed(raw, in_reasoning=True, tools=[RUN]))
    assert (thought[0], thought[1]) == ("reasoning", "Hm.")
    assert b"Hm." in spelled(thought[2])
    assert b"</think>" not in spelled(thought[2])
    assert (text[0], text[1]) == ("text", "Grüße, 船 🌊.")
    assert spelled(text[2]).strip().decode() == text[1]
    for token in text[2][1:]:
        assert text[1][token.at :].startswith(token.token) or "�" in token.token
        assert [top.logprob for top in token.top] == [-0.5]
    assert (call[0], call[1]) == ("tool_use", '{"cmd": "ls"}')
    assert spelled(call[2]).strip().startswith(b'{"cmd": "ls"}')


@for_each([0, 1, 3])
def test_tokens_that_a_stop_string_cuts_are_not_sent(cuts: int) -> None:
    parse = parsed("One two STOP three", stop=["STOP"], cuts=cuts)
    ((_, text, tokens),) = scored_blocks(parse)
    assert (text, spelled(tokens)[: len(text)]) == ("One two ", b"One two ")
    assert [token for token in tokens if token.at >= len(text)] == []
    assert finish(parse).stop_string == "STOP"


def test_a_stop_string_stays_only_where_the_client_wants_it() -> None:
    for text, shown in (("One two STOP three", ["One two STOP"]), ("STOP", ["STOP"])):
        parse = parsed(text, stop=["STOP"], include_stop=True)
        assert [said for _, said, _ in scored_blocks(parse)] == shown
        assert spelled(scored_blocks(parse)[0][2]).startswith(shown[0].encode())
        assert finish(parse).reason is FinishReason.STOP_STRING
    assert scored_blocks(parsed("STOP", stop=["STOP"])) == []


@for_rows([("!", False, "Hi"), ("!", True, "Hi!"), ("<|im_end|>", True, "Hi")])
def test_the_text_of_a_stop_token_stays_too_unless_it_is_a_control_token(
    stop: str, include: bool, shown: str
) -> None:
    (stop_id,) = ids_of(stop)
    blocks = scored_blocks(parsed("Hi", stop_id=stop_id, include_stop=include))
    assert [text for _, text, _ in blocks] == [shown]


CALLS = (
    'Now.\n<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "wipe", "arguments": {"all": true}}\n</tool_call>'
)


def test_a_call_of_a_tool_that_may_not_be_called_is_text() -> None:
    parse = parsed(CALLS, tools=[RUN, ToolSpec("wipe")], allowed=["run"], scored=False)
    kinds = [(kind, text) for kind, text, _ in scored_blocks(parse)]
    assert kinds[:2] == [("text", "Now."), ("tool_use", '{"cmd": "ls"}')]
    assert kinds[2:] == [("text", 'wipe({"all": true})')]
    assert finish(parse).blocks == 3


def dispatched(parse: TurnParse) -> list[tuple[int, str, str]]:
    """All dispatches; each is right before the end of its block, and has its id, name and
    arguments."""
    read = events(parse)
    for at, event in enumerate(read):
        if isinstance(event, Dispatch):
            block = parse.stream.log.blocks[event.block]
            start = block.start
            assert read[at + 1] is block.stop
            assert (start.name, start.call_id) == (event.name, event.call_id)
    dispatches = [event for event in read if isinstance(event, Dispatch)]
    return [(event.block, event.name, event.arguments) for event in dispatches]


@for_each([0, 1])
def test_a_complete_call_is_dispatched_once(cuts: int) -> None:
    run, wipe = (1, "run", '{"cmd": "ls"}'), (2, "wipe", '{"all": true}')

    def of(text: str = CALLS, **options: Any) -> list[tuple[int, str, str]]:
        tools = [RUN, ToolSpec("wipe")]
        return dispatched(parsed(text, tools=tools, scored=False, cuts=cuts, **options))

    assert of() == [run, wipe]
    assert of(calls="single") == [run]
    assert of(allowed=["run"]) == [run]
    assert of(CALLS.removesuffix("}\n</tool_call>"), reason=FinishReason.LENGTH) == [run]


def test_a_barred_call_does_not_end_the_turn_nor_is_it_searched_for_stop_strings() -> None:
    tools = [RUN, ToolSpec("wipe")]
    parse = parsed(
        CALLS, tools=tools, allowed=["wipe"], calls="single", stop=["ls", "}"], scored=False
    )
    assert [kind for kind, _, _ in scored_blocks(parse)] == ["text", "text", "tool_use"]
    assert finish(parse).reason is FinishReason.STOP


RAW = ("  \n\n x ", "\n", " ", "<think>a</think>\n<tool_call>\n{}</tool_call> ", "a\n\n", "\u3000")


@for_rows([*product(RAW, (0, 1), ([], ["STOP"]))])
def test_raw_completions_are_passed_on_as_they_are(text: str, cuts: int, stop: list[str]) -> None:
    shown = text.replace("<tool_call>", "")  # a control token
    parse = parsed(text, family="verbatim", tools=[RUN], cuts=cuts, stop=stop)
    assert [(kind, said) for kind, said, _ in scored_blocks(parse)] == [("text", shown)]
    assert spelled(scored_blocks(parse)[0][2]) == shown.encode()


def test_a_raw_completion_of_nothing_has_no_block() -> None:
    shard, end = Shard(VOCABULARY, SEALER), TokenFinish(FinishReason.STOP, STOP)
    shard.parse(entry(0, [], scored=False, finish=end, family="verbatim"), "w")
    assert [type(event) for event in events(shard.turns["t"])] == [Finish]


def test_tokens_that_come_again_are_not_taken_again() -> None:
    shard, ids = Shard(VOCABULARY, SEALER), ids_of("Hello there")
    for start, end in ((0, 3), (1, len(ids)), (2, len(ids))):
        shard.parse(entry(start, ids[start:end], scored=True, logprobs=1), "w")
    parse = shard.turns["t"]
    assert [*parse.stream.ids] == ids
    parse.finish(TokenFinish(FinishReason.STOP, STOP))
    ((_, text, tokens),) = scored_blocks(parse)
    assert (text, spelled(tokens)) == ("Hello there", b"Hello there")
