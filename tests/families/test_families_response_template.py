"""A `response_template` becomes a family with a family's guarantees, or is refused in one line."""

import json
import random
import re
import time
from itertools import product
from typing import Any

import pytest

from schemas.events import BlockStop, Delta, FinishReason
from services.families import family, open_parser
from services.families.description.fields import InvalidResponseTemplate
from services.families.response_template import MAX_CHARS, described_family, template_name
from tests.kit.described_turns import TOOLS, WORDS, WRITTEN, make_turn, templates
from tests.kit.every import for_each, for_rows
from tests.kit.examples import chances
from tests.kit.parser_cases import CHUNKINGS, Block, any_cut, fold, problems, run, tools, vectors
from tests.kit.response_templates import simple, tagged

NAMES = [name for name in WRITTEN if name in templates()]


def name_of(name: str) -> str:
    """The family's name of a template."""
    return template_name(json.dumps(templates()[name]))


def thinking(**field: str) -> dict[str, Any]:
    return simple(thinking={"close": "x", **field})


MANY = {"open": [f"<{n}>" for n in range(900)], "close": [f"</{n}>" for n in range(800)]}
REFUSED: list[tuple[Any, str]] = [
    ([], "is not an object"),
    (simple(version=2), "version"),
    (simple(schema={}), "schema"),
    (simple(content={"close": "\ud800"}), "is not JSON"),
    ({"start_anchor": "x", "fields": {}}, "fields is empty"),
    ({"fields": {"content": {}}}, "start_anchor is missing"),
    (simple(content={"clsoe": "x"}), "fields.content is invalid"),
    (simple(content={"content": "yaml"}), "fields.content is invalid"),
    (simple(content={"close": "x", "close_pattern": "x"}), "fields.content.close"),
    (simple(answer={}), "fields.answer.open"),  # two fields that take the rest
    ({"start_anchor": "x", "fields": {"thinking": {"close": "y"}}}, "thinking.open"),
    (simple(tool_calls={"content": "json"}), "fields.tool_calls.open"),
    (simple(thinking={"open": "<think>"}), "fields.thinking.close"),
    (thinking(open=" "), "fields.thinking.open"),
    (thinking(open_pattern="("), "fields.thinking.open_pattern"),
    (thinking(open_pattern="x(a+)+b"), "fields.thinking.open_pattern"),
    (thinking(open_pattern=r"(x)\1"), "fields.thinking.open_pattern"),
    (thinking(open_pattern="x(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)"), "forms"),
    (simple(answer=MANY), "fields.answer.open has too many forms"),
    (simple(content={"close_pattern": "<end>.*"}), "fields.content.close does not end"),
    (simple(answer={"open_pattern": r"<to \w+", "close": "x"}), "fields.answer.open does not end"),
    (thinking(open_pattern=r"\w+>"), "fields.thinking.open"),
    (thinking(open_pattern="(?=.*</t>)", close="</t>"), "open_pattern"),
    (thinking(open_pattern="<t>(?=x)y", close="</t>"), "open_pattern"),
    (thinking(open="a", join="x"), "join"),  # without repeats
    (simple(tool_calls={"open_pattern": "<(?P<name>a)>", "content": "json"}), "transform"),
    (tagged(transform={"name": "{tool}", "arguments": "{content}"}), "{tool}"),
    (tagged(transform={"name": "f.{name}", "arguments": "{content}"}), "transform"),
    (tagged(transform={"arguments": "{content}"}, open="<c>", open_pattern=None), "transform"),
    (tagged(open_pattern=r"<(?P<name>\w+)>", transform={"arguments": "{content}"}), "transform"),
    (tagged(content="kv-lines"), "fields.tool_calls.content"),
    (tagged(content_args={"tag_pattern": "<a>(?P<value>.*?)</a>"}), "tag_pattern"),
    (tagged(content_args={"tag_pattern": "<(?P<key>[^>]+)>(?P<value>.*)"}), "tag_pattern"),
    (tagged(content="json", content_args={"string_delims": [["«", "»"]]}), "content_args"),
    (tagged(open_pattern=r"<(?P<name>[^\n]+)x>"), "open_pattern"),
    (thinking(open="x" * MAX_CHARS), "characters"),
]


@for_rows(REFUSED)
def test_invalid_description_is_refused_in_one_line(source: Any, key_path: str) -> None:
    with pytest.raises(InvalidResponseTemplate) as refused:
        template_name(json.dumps(source))
    message = str(refused.value)
    assert message.startswith("response_template")
    assert key_path in message
    assert "\n" not in message


@for_rows([*product(("open", "close"), ("ws", "name", "tag", "junk", "header"))])
def test_text_that_is_spelled_like_a_hole_is_refused_or_read_as_itself(key: str, hole: str) -> None:
    text = f"<m{{{hole}}}x>"
    written = {"open": "<think>", "close": "</think>", key: text}
    for name, value in ((key, text), (f"{key}_pattern", text), (f"{key}_pattern", re.escape(text))):
        source = {**written, name: value}
        if name != key:
            del source[key]
        try:
            found = template_name(json.dumps(simple(thinking=source)))
        except InvalidResponseTemplate:
            continue
        blocks = fold(run(open_parser(found), [f"{written['open']}A{written['close']}B"]))
        shown = [(block["type"], block["text"]) for block in blocks]
        assert shown == [("reasoning", "A"), ("text", "B")]


def test_description_that_is_nested_too_deeply_or_not_json_is_refused() -> None:
    deep = '{"start_anchor":"x","fields":{"content":{"transform":' + "[" * 5000 + "]" * 5000 + "}}}"
    for source in (deep, "{"):
        with pytest.raises(InvalidResponseTemplate):
            template_name(source)


@for_rows([*product([None, 3, "x", [], [[]], {}, [["a"]], True], ["json", "xml-inline"])])
def test_content_args_of_any_type_raise_nothing_else(value: Any, kind: str) -> None:
    for key in ("string_delims", "unquoted_keys", "tag_pattern", "value_parser"):
        opener = r"<call (?P<name>\w+)>"
        source = tagged(content=kind, content_args={key: value}, open_pattern=opener)
        with pytest.raises(InvalidResponseTemplate):
            template_name(json.dumps(source))


@for_each(NAMES)
def test_name_is_the_whole_description(name: str) -> None:
    found = name_of(name)
    assert json.loads(found) == templates()[name]
    assert family(found) is described_family(found)
    whole = {"chat_template": "…", "response_template": templates()[name]}
    assert found == template_name(json.dumps(whole))
    assert found == template_name(found)


SLOW = ("(a+)+b", "(?:a|a)*b", "(.*a){20}", "(" * 60 + "a" + ")*" * 60, "a{1,9999}b{1,9999}")


@for_each(SLOW)
def test_expression_that_could_take_long_never_runs(pattern: str) -> None:
    start = time.process_time()
    try:
        found = template_name(json.dumps(thinking(open_pattern=f"x{pattern}")))
    except InvalidResponseTemplate:
        pass
    else:
        run(open_parser(found), ["x" + "a" * 20_000])
    assert time.process_time() - start < 5


@for_each(NAMES)
def test_cut_call_is_not_dispatched(name: str) -> None:
    for chance in chances(name, 9):
        turn = make_turn(chance, WRITTEN[name])
        thinks = described_family(name_of(name)).opens_reasoning(turn.prompt[-512:])
        for end in range(0, len(turn.output), 2):
            parser = open_parser(name_of(name), tools=TOOLS, in_reasoning=thinks)
            found = fold(run(parser, [turn.output[:end]], FinishReason.LENGTH))
            calls = [(one["name"], one["input"]) for one in found if one.get("input") is not None]
            assert calls == turn.calls[: len(calls)], turn.output[:end]


@for_each([name for name in NAMES if WRITTEN[name].calls])
def test_call_is_dispatched_at_its_last_token(name: str) -> None:
    written = WRITTEN[name]
    assert written.calls is not None
    last = written.calls([("look_up", {"days": 3})])
    parser = open_parser(name_of(name), tools=TOOLS)
    events = [event for char in last for event in parser.feed(char)]
    assert [event.complete for event in events if isinstance(event, BlockStop)] == [True]


@for_each([name for name in NAMES if WRITTEN[name].calls])
def test_arguments_in_json_may_be_named_parameters(name: str) -> None:
    call = described_family(name_of(name)).style.write_call("look_up", {"days": 3})
    raw = call.replace('"arguments"', '"parameters"')
    (block,) = fold(run(open_parser(name_of(name), tools=TOOLS), [raw]))
    assert (block["name"], block["input"]) == ("look_up", {"days": 3})


@for_each(NAMES)
def test_reasoning_and_text_flow(name: str) -> None:
    written, said = WRITTEN[name], "One two three four, and so on to the end of it."
    for write, thinks in ((written.thought, bool(written.thinking_prompt)), (written.text, False)):
        if write is None:
            continue
        parser = open_parser(name_of(name), tools=TOOLS, in_reasoning=thinks)
        before, _, _ = write(said).partition(said)
        parser.feed(before)
        shown = 0
        for fed, char in enumerate(said, 1):
            shown += sum(len(event.text) for event in parser.feed(char) if isinstance(event, Delta))
            assert shown >= fed - 2, "more than the beginning of a delimiter is held back"


def read_any(name: str, text: str, chance: random.Random) -> list[Block]:
    """The blocks of a turn with any end and beginning, the same whole, per character and cut."""
    reason = chance.choice((FinishReason.STOP, FinishReason.LENGTH))
    thinks = chance.random() < 0.3
    whole, characters, other = (
        fold(run(open_parser(name, tools=TOOLS, in_reasoning=thinks), cut, reason))
        for cut in ([text], text, any_cut(text))
    )
    assert whole == characters == other, (name, text)
    return whole


@for_each(NAMES)
def test_any_mixture_of_delimiters_is_read_alike_in_every_chunking(name: str) -> None:
    """No exception, no lost word, no control token outside of calls."""
    found = described_family(name_of(name))
    call = found.style.write_call("look_up", {})
    pieces = [*found.markers, *found.stops, found.style.call_prefix("look_up"), call]
    for chance in chances(name, 120):
        some = chance.choices([*pieces, *WORDS, " ", "\n", "word"], k=chance.randint(1, 14))
        blocks = read_any(found.name, "".join(some), chance)
        shown = "".join(block["text"] for block in blocks if block["type"] != "tool_use")
        assert "<|" not in shown, some
        assert "|>" not in shown, some


def test_control_tokens_are_shown_in_code_only() -> None:
    source = simple(thinking={"open": "<|think|>", "close": "<|/think|>"}, start_anchor="<|bot|>")
    text = "A <|bot|>word, `<|bot|>`, and\n```\n<|think|>x<|/think|>\n```\nthen <|/think|>more."
    for split in CHUNKINGS.values():
        (block,) = fold(run(open_parser(template_name(json.dumps(source))), split(text)))
        assert block["text"] == "A word, `<|bot|>`, and\n```\n<|think|>x<|/think|>\n```\nthen more."


def test_prompt_opens_reasoning_that_only_looks_ahead() -> None:
    source = simple(
        start_anchor_pattern=r"<bot>(?:<think>)?",
        start_anchor=None,
        thinking={"open_pattern": r"(?=[\s\S]*?</think>)", "close": "</think>"},
    )
    found = described_family(template_name(json.dumps(source)))
    assert found.think == ("<think>", "</think>")
    assert found.opens_reasoning("<bot><think>")
    assert not found.opens_reasoning("<bot>")


LACKS = {
    "qwen3": ("hermes", set()),
    "qwen3_5": ("qwen3_coder", set()),
    "glm4moe": ("glm45", set()),
    "llama3": ("llama3_json", {"python_tag_prefix"}),
    "lfm2_2_5": ("lfm2", set()),
    "nemotron_3": ("nemotron_v3", set()),
    "gemma4": ("gemma4", set()),
    "deepseek_r1_distill": ("deepseek_r1", set()),
    "gptoss": (
        "gpt_oss",
        {case["case"] for case in vectors("gpt_oss")}
        - {"angle_brackets_in_text", "text_without_any_header"},
    ),
}
"""The families of trl's templates, and their vectors that the templates do not read
(docs/families.md)."""


@for_each([name for name in NAMES if name in LACKS])
def test_template_reads_the_vectors_of_its_family(name: str) -> None:
    kind, lacking = LACKS[name]
    failed = set()
    for case in vectors(kind):
        raw, reason = case["raw"], FinishReason(case["finish_reason"])
        thinks = case["prompt_ends_in_reasoning"]
        for cut in ([raw], any_cut(raw)):
            parser = open_parser(name_of(name), tools=tools(case), in_reasoning=thinks)
            if problems(case, fold(run(parser, cut, reason))):
                failed.add(case["case"])
    assert failed == lacking
