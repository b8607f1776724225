"""A `response_template` becomes a family with a family's guarantees, or is refused in one line."""

import json
import random
import re
import time
from typing import Any

import pytest

from schemas.events import BlockStop, Delta, FinishReason
from services.families import family, open_parser
from services.families.description.fields import InvalidResponseTemplate
from services.families.response_template import MAX_CHARS, described_family, template_name
from tests.kit.described_turns import TOOLS, WORDS, WRITTEN, make_turn, templates
from tests.kit.every import for_each
from tests.kit.parser_cases import CHUNKINGS, fold, problems, run, tools, vectors
from tests.kit.response_templates import simple, tagged

NAMES = [name for name in WRITTEN if name in templates()]


def name_of(name: str) -> str:
    """The family's name of a template."""
    return template_name(json.dumps(templates()[name]))


REFUSED: dict[str, tuple[Any, str]] = {
    "a list": ([], "is not an object"),
    "version 2": (simple(version=2), "version"),
    "an unknown key": (simple(schema={}), "schema"),
    "half of a surrogate pair": (simple(content={"close": "\ud800"}), "is not JSON"),
    "no fields": ({"start_anchor": "x", "fields": {}}, "fields is empty"),
    "no anchor": ({"fields": {"content": {}}}, "start_anchor is missing"),
    "an unknown key in a field": (simple(content={"clsoe": "x"}), "fields.content is invalid"),
    "an unknown content": (simple(content={"content": "yaml"}), "fields.content is invalid"),
    "a delimiter twice": (
        simple(content={"close": "x", "close_pattern": "x"}),
        "fields.content.close",
    ),
    "two fields that take the rest": (simple(answer={}), "fields.answer.open"),
    "reasoning that takes the rest": (
        {"start_anchor": "x", "fields": {"thinking": {"close": "y"}}},
        "thinking.open",
    ),
    "calls without an opener": (simple(tool_calls={"content": "json"}), "fields.tool_calls.open"),
    "reasoning without a closer": (simple(thinking={"open": "<think>"}), "fields.thinking.close"),
    "an empty delimiter": (simple(thinking={"open": " ", "close": "x"}), "fields.thinking.open"),
    "a broken expression": (
        simple(thinking={"open_pattern": "(", "close": "x"}),
        "fields.thinking.open_pattern",
    ),
    "nested repetition": (
        simple(thinking={"open_pattern": "x(a+)+b", "close": "x"}),
        "fields.thinking.open_pattern",
    ),
    "a backward reference": (
        simple(thinking={"open_pattern": r"(x)\1", "close": "x"}),
        "fields.thinking.open_pattern",
    ),
    "too many forms": (
        simple(thinking={"open_pattern": "x(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)", "close": "x"}),
        "forms",
    ),
    "too many delimiters": (
        simple(
            answer={
                "open": [f"<{n}>" for n in range(900)],
                "close": [f"</{n}>" for n in range(800)],
            }
        ),
        "fields.answer.open has too many forms",
    ),
    "no fixed end": (
        simple(content={"close_pattern": "<end>.*"}),
        "fields.content.close does not end",
    ),
    "an opener of text without a fixed end": (
        simple(answer={"open_pattern": r"<to \w+", "close": "x"}),
        "fields.answer.open does not end",
    ),
    "no fixed start": (
        simple(thinking={"open_pattern": r"\w+>", "close": "x"}),
        "fields.thinking.open",
    ),
    "a look ahead without an opener": (
        simple(thinking={"open_pattern": "(?=.*</t>)", "close": "</t>"}),
        "open_pattern",
    ),
    "a look ahead before the end": (
        simple(thinking={"open_pattern": "<t>(?=x)y", "close": "</t>"}),
        "open_pattern",
    ),
    "a group without a use": (
        simple(tool_calls={"open_pattern": "<(?P<name>a)>", "content": "json"}),
        "transform",
    ),
    "a placeholder that nothing captures": (
        tagged(transform={"name": "{tool}", "arguments": "{content}"}),
        "{tool}",
    ),
    "a placeholder in text": (
        tagged(transform={"name": "f.{name}", "arguments": "{content}"}),
        "transform",
    ),
    "no name": (
        tagged(transform={"arguments": "{content}"}, open="<call>", open_pattern=None),
        "transform",
    ),
    "a group that is not the name": (
        tagged(open_pattern=r"<(?P<name>\w+)>", transform={"arguments": "{content}"}),
        "transform",
    ),
    "calls in lines": (tagged(content="kv-lines"), "fields.tool_calls.content"),
    "tags without a key": (
        tagged(content_args={"tag_pattern": "<a>(?P<value>.*?)</a>"}),
        "tag_pattern",
    ),
    "tags without an end": (
        tagged(content_args={"tag_pattern": "<(?P<key>[^>]+)>(?P<value>.*)"}),
        "tag_pattern",
    ),
    "JSON of an unknown kind": (
        tagged(content="json", content_args={"string_delims": [["«", "»"]]}),
        "fields.tool_calls.content_args",
    ),
    "a name that may hold what follows": (
        tagged(open_pattern=r"<(?P<name>[^\n]+)x>"),
        "open_pattern",
    ),
    "join without repeats": (simple(thinking={"open": "a", "close": "b", "join": "x"}), "join"),
}


@for_each(REFUSED)
def test_invalid_description_is_refused_in_one_line(case: str) -> None:
    source, key_path = REFUSED[case]
    with pytest.raises(InvalidResponseTemplate) as refused:
        template_name(json.dumps(source))
    message = str(refused.value)
    assert message.startswith("response_template")
    assert key_path in message
    assert "\n" not in message


@pytest.mark.parametrize("key", ["open", "close"])
@pytest.mark.parametrize("hole", ["ws", "name", "tag", "junk", "header"])
def test_text_that_is_spelled_like_a_hole_is_refused_or_read_as_itself(hole: str, key: str) -> None:
    delimiters, text = {"open": "<think>", "close": "</think>"}, f"<m{{{hole}}}x>"
    for key_now, value in (
        (key, text),
        (f"{key}_pattern", text),
        (f"{key}_pattern", re.escape(text)),
    ):
        source = {
            **{name: value for name, value in delimiters.items() if name != key},
            key_now: value,
        }
        try:
            found = template_name(json.dumps(simple(thinking=source)))
        except InvalidResponseTemplate:
            continue
        written = {**delimiters, key: text}
        blocks = fold(run(open_parser(found), [f"{written['open']}A{written['close']}B"]))
        assert [(block["type"], block["text"]) for block in blocks] == [
            ("reasoning", "A"),
            ("text", "B"),
        ]


def test_description_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidResponseTemplate, match="characters"):
        template_name(json.dumps(simple(thinking={"open": "x" * MAX_CHARS, "close": "y"})))


def test_description_that_is_nested_too_deeply_is_refused() -> None:
    deep = '{"start_anchor":"x","fields":{"content":{"transform":' + "[" * 5000 + "]" * 5000 + "}}}"
    with pytest.raises(InvalidResponseTemplate):
        template_name(deep)


@for_each([None, 3, "x", [], [[]], {}, [["a"]], True])
@pytest.mark.parametrize("kind", ["json", "xml-inline"])
def test_content_args_of_any_type_raise_nothing_else(value: Any, kind: str) -> None:
    for key in ("string_delims", "unquoted_keys", "tag_pattern", "value_parser"):
        source = tagged(
            content=kind, content_args={key: value}, open_pattern=r"<call (?P<name>\w+)>"
        )
        with pytest.raises(InvalidResponseTemplate):
            template_name(json.dumps(source))


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidResponseTemplate, match="not JSON"):
        template_name("{")


@for_each(NAMES)
def test_name_is_the_whole_description(name: str) -> None:
    found = name_of(name)
    assert json.loads(found) == templates()[name]
    assert family(found) is described_family(found)
    assert found == template_name(
        json.dumps({"chat_template": "…", "response_template": templates()[name]})
    )
    assert found == template_name(found)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(?:a|a)*b", "(.*a){20}", "(" * 60 + "a" + ")*" * 60, "a{1,9999}b{1,9999}"],
)
def test_expression_that_could_take_long_never_runs(pattern: str) -> None:
    start = time.process_time()
    try:
        found = template_name(
            json.dumps(simple(thinking={"open_pattern": f"x{pattern}", "close": "y"}))
        )
    except InvalidResponseTemplate:
        pass
    else:
        run(open_parser(found), ["x" + "a" * 20_000])
    assert time.process_time() - start < 5


@for_each(NAMES)
def test_written_form_is_read_back(name: str) -> None:
    style = described_family(name_of(name)).style
    if not style.call:
        return
    arguments = {"city": 'Paris "x"', "days": 3, "exact": True, "places": ["a", "b"]}
    text = style.write_call("look_up", arguments)
    (block,) = fold(run(open_parser(name_of(name), tools=TOOLS), [text]))
    assert (block["name"], block["input"], block["complete"]) == ("look_up", arguments, True)


@for_each(NAMES, parts=2)
def test_cut_call_is_not_dispatched(name: str) -> None:
    rng = random.Random(name)
    for _ in range(6):
        turn = make_turn(rng, WRITTEN[name])
        thinks = described_family(name_of(name)).opens_reasoning(turn.prompt[-512:])
        for end in range(len(turn.output)):
            parser = open_parser(name_of(name), tools=TOOLS, in_reasoning=thinks)
            found = fold(run(parser, [turn.output[:end]], FinishReason.LENGTH))
            calls = [
                (one["name"], one["input"])
                for one in found
                if one["type"] == "tool_use" and one["complete"]
            ]
            assert calls == turn.calls[: len(calls)], turn.output[:end]


@for_each([name for name in NAMES if WRITTEN[name].calls])
def test_call_is_dispatched_at_its_last_token(name: str) -> None:
    written = WRITTEN[name]
    assert written.calls is not None
    last = written.calls([("look_up", {"days": 3})]) + (written.end if name == "llama3" else "")
    parser = open_parser(name_of(name), tools=TOOLS)
    events = [event for char in last for event in parser.feed(char)]
    assert [event.complete for event in events if isinstance(event, BlockStop)] == [True]


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


@for_each(NAMES)
def test_any_mixture_of_delimiters_is_read_alike_in_every_chunking(name: str) -> None:
    """No exception, no lost word, no control token outside of calls."""
    rng, found = random.Random(name), described_family(name_of(name))
    pieces = [
        *found.markers,
        *found.stops,
        found.style.call_prefix("look_up"),
        found.style.write_call("look_up", {}),
    ]
    for _ in range(80):
        text = "".join(
            rng.choice([*pieces, *WORDS, " ", "\n", "word"]) for _ in range(rng.randint(1, 14))
        )
        reason = rng.choice([FinishReason.STOP, FinishReason.LENGTH])
        thinks = rng.random() < 0.3

        def read(
            chunks: Any, text: str = text, reason: FinishReason = reason, thinks: bool = thinks
        ) -> Any:
            return fold(
                run(open_parser(found.name, tools=TOOLS, in_reasoning=thinks), chunks, reason)
            )

        blocks = read([text])
        assert all(read(split(text)) == blocks for split in CHUNKINGS.values()), text
        shown = "".join(block["text"] for block in blocks if block["type"] != "tool_use")
        assert "<|" not in shown, text
        assert "|>" not in shown, text


@for_each(NAMES)
def test_output_without_delimiters_is_text(name: str) -> None:
    text = "Just an answer: a < b, [x], {y}, and 3 > 2."
    (block,) = fold(run(open_parser(name_of(name), tools=TOOLS), list(text)))
    assert (block["type"], block["text"]) == ("text", text)


def test_text_of_a_field_with_delimiters_is_a_block_of_its_own() -> None:
    blocks = fold(run(open_parser(name_of("list")), ["Well: ◁no▷I will not.◁/no▷ So it is."]))
    assert [(block["type"], block["text"].strip()) for block in blocks] == [
        ("text", "Well:"),
        ("text", "I will not."),
        ("text", "So it is."),
    ]


def test_control_tokens_are_shown_in_code_only() -> None:
    source = simple(thinking={"open": "<|think|>", "close": "<|/think|>"}, start_anchor="<|bot|>")
    text = "A <|bot|>word, `<|bot|>`, and\n```\n<|think|>x<|/think|>\n```\nthen <|/think|>more."
    for split in CHUNKINGS.values():
        (block,) = fold(run(open_parser(template_name(json.dumps(source))), split(text)))
        assert block["text"] == "A word, `<|bot|>`, and\n```\n<|think|>x<|/think|>\n```\nthen more."


def test_calls_are_text_without_tools() -> None:
    text = described_family(name_of("renamed")).style.write_call("look_up", {})
    assert [block["type"] for block in fold(run(open_parser(name_of("renamed")), [text]))] == [
        "text"
    ]


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
        for split in CHUNKINGS.values():
            parser = open_parser(
                name_of(name), tools=tools(case), in_reasoning=case["prompt_ends_in_reasoning"]
            )
            if problems(
                case, fold(run(parser, split(case["raw"]), FinishReason(case["finish_reason"])))
            ):
                failed.add(case["case"])
    assert failed == lacking


_PIECES = (
    "<a>",
    "</a>",
    "<|b|>",
    "[C]",
    "◁d◁",
    "e:",
    "{",
    "}",
    "[",
    "]",
    "(",
    "\n",
    " ",
    "f",
    '"',
    "<g h=",
    "</",
    ",",
)


def _random_field(rng: random.Random, kind: str) -> dict[str, Any]:
    """A field with delimiters of any kind."""

    def delimiter(key: str) -> dict[str, Any]:
        text = "".join(rng.choice(_PIECES) for _ in range(rng.randint(1, 3)))
        group = (
            rng.choice([r"(?P<name>\w+)", r'(?P<name>[^"<>]+)', r"(?P<name>\S+?)"])
            if key == "open"
            else ""
        )
        pattern = re.escape(text) + (
            group + re.escape(rng.choice(_PIECES)) if kind == "tool_calls" else ""
        )
        ends = rng.choice(["", r"\s*", "|$", r"\n?", r"(?:<x>)?", r"(?=<y>)", r".*", r"\w+"])
        return rng.choice(
            [{key: text}, {key: [text, text + "x"]}, {f"{key}_pattern": pattern + ends}]
        )

    field = {**delimiter("open"), **(delimiter("close") if rng.random() < 0.9 else {})}
    if kind == "tool_calls":
        named = "open_pattern" in field
        tag = rng.choice(
            [r"<(?P<key>\w+)>(?P<value>.*?)</", r"k=(?P<key>[^>]+)>\s*(?P<value>[\s\S]*?)\s*;"]
        )
        field |= {
            "content": rng.choice(["json", "json", "xml-inline", "python-call-list"]),
            "repeats": True,
        }
        field |= {"content_args": {"tag_pattern": tag}} if field["content"] == "xml-inline" else {}
        if named:
            field["transform"] = {"function": {"name": "{name}", "arguments": "{content}"}}
    return field


@for_each(range(6))
def test_any_description_is_refused_or_reads_any_text(seed: int) -> None:
    rng, followed = random.Random(seed), 0
    for _ in range(150):
        kinds = rng.sample(["thinking", "tool_calls", "answer"], rng.randint(1, 3))
        source = simple(**{kind: _random_field(rng, kind) for kind in kinds})
        source["fields"]["content"] |= rng.choice(
            [{}, {"close": "<|end|>"}, {"open": "<t>", "close": "</t>"}]
        )
        try:
            name = template_name(json.dumps(source))
        except InvalidResponseTemplate:
            continue
        followed += 1
        found = described_family(name)
        pieces = [
            *_PIECES,
            *found.markers,
            found.style.write_call("look_up", {"days": 3}),
            found.style.write_reasoning("x"),
        ]
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 20)))
        reason, thinks = rng.choice([FinishReason.STOP, FinishReason.LENGTH]), rng.random() < 0.3
        whole = fold(run(open_parser(name, tools=TOOLS, in_reasoning=thinks), [text], reason))
        for split in CHUNKINGS.values():
            assert (
                fold(run(open_parser(name, tools=TOOLS, in_reasoning=thinks), split(text), reason))
                == whole
            ), source
    assert followed > 20
