"""A `response_template` becomes a family with a family's guarantees, or is refused in one line."""

import json
import time
from functools import partial
from typing import Any

import pytest

from schemas.events import FinishReason
from services.families import find_family, open_parser
from services.families.description.fields import InvalidResponseTemplate
from services.families.response_template import MAX_CHARS, described_family, template_name
from tests.kit.described_turns import TOOLS, WRITTEN, make_turn, templates
from tests.kit.every import for_each, for_rows
from tests.kit.examples import chances
from tests.kit.parser_cases import every_way, fold, opened, problems, run, vectors
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
    (simple(content={"close": "\ud800"}), "is not JSON"),
    ({"start_anchor": "x", "fields": {}}, "fields is empty"),
    ({"fields": {"content": {}}}, "start_anchor is missing"),
    (simple(content={"clsoe": "x"}), "fields.content is invalid"),
    (simple(content={"close": "x", "close_pattern": "x"}), "fields.content.close"),
    (simple(answer={}), "fields.answer.open"),  # two fields that take the rest
    (simple(thinking={"open": "<think>"}), "fields.thinking.close"),
    (thinking(open_pattern="("), "fields.thinking.open_pattern"),
    (thinking(open_pattern="x(a+)+b"), "fields.thinking.open_pattern"),
    (thinking(open_pattern="x(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)"), "forms"),
    (simple(answer=MANY), "fields.answer.open has too many forms"),
    (simple(content={"close_pattern": "<end>.*"}), "fields.content.close does not end"),
    (simple(answer={"open_pattern": r"<to \w+", "close": "x"}), "fields.answer.open does not end"),
    (thinking(open_pattern="(?=.*</t>)", close="</t>"), "open_pattern"),
    (thinking(open="<m{ws}x>"), "cannot be expressed"),
    (thinking(open="a", join="x"), "join"),  # without repeats
    (simple(tool_calls={"open_pattern": "<(?P<name>a)>", "content": "json"}), "transform"),
    (tagged(transform={"name": "{tool}", "arguments": "{content}"}), "{tool}"),
    (tagged(open_pattern=r"<(?P<name>\w+)>", transform={"arguments": "{content}"}), "transform"),
    (tagged(content="kv-lines"), "fields.tool_calls.content"),
    (tagged(content_args={"tag_pattern": "<a>(?P<value>.*?)</a>"}), "tag_pattern"),
    (tagged(content="json", content_args={"string_delims": [["«", "»"]]}), "content_args"),
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


def test_description_that_is_nested_too_deeply_or_not_json_is_refused() -> None:
    deep = '{"start_anchor":"x","fields":{"content":{"transform":' + "[" * 5000 + "]" * 5000 + "}}}"
    for source in (deep, "{"):
        with pytest.raises(InvalidResponseTemplate):
            template_name(source)


@for_each(NAMES)
def test_name_is_the_whole_description(name: str) -> None:
    found = name_of(name)
    assert json.loads(found) == templates()[name]
    assert find_family(found) is described_family(found)
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


def test_control_tokens_are_shown_in_code_only() -> None:
    source = simple(thinking={"open": "<|think|>", "close": "<|/think|>"}, start_anchor="<|bot|>")
    text = "A <|bot|>word, `<|bot|>`, and\n```\n<|think|>x<|/think|>\n```\nthen <|/think|>more."
    (block,) = every_way(lambda: open_parser(template_name(json.dumps(source))), text)
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
        described = {**case, "family": name_of(name)}
        reason = FinishReason(case["finish_reason"])
        blocks = every_way(partial(opened, described), case["raw"], reason)
        if problems(case, blocks):
            failed.add(case["case"])
    assert failed == lacking
