"""Messages with headers (gpt-oss, Muse Glimmer, Inkling), and calls with bare text (CWM)."""

from typing import Any

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from tests.kit.every import for_each, for_rows
from tests.kit.families import Said, read_exactly, text, thought

CALL = '<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{"a": 1}<|call|>'
FINAL = "<|channel|>final<|message|>Done.<|return|>"


@for_rows(
    [
        (CALL, [("ping", {"a": 1})]),
        (' to=functions.ping<|channel|>commentary json<|message|>{"a": 1}', [("ping", {"a": 1})]),
        (
            '<|channel|>commentary to=functions.ping <|constrain|>json{"a": 1}<|call|>',
            [("ping", {"a": 1})],
        ),
        ("<|channel|>commentary to=functions.ping<|message|>", [("ping", {})]),
        ("<|channel|>commentary to=user<|message|>So.<|end|>", [text("So.")]),
        (
            "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Done.",
            [thought("Hm."), text("Done.")],
        ),
        (
            "<|channel|>final<|message|>Use <|x|> or <|channel|> and <|start|>.",
            [text("Use <|x|> or <|channel|> and <|start|>.")],
        ),
        (
            '<|channel|>final<|message|>The string <|channel|>comzq and "<|ch".',
            [text('The string <|channel|>comzq and "<|ch".')],
        ),
        ("<|channel|>final Done.", [text(" Done.")]),
        # headers of other forms
        ('<|channel|>commentary to=functions.ping{"a": 1}<|call|>', [("ping", {"a": 1})]),
        ("<|start|>assistant<|channel|>––analysis<|message|>Hm.<|end|>", [thought("Hm.")]),
        (
            "analysis<|message|>Hm.<|start|>assistant final<|message|>Done.",
            [thought("Hm."), text("Done.")],
        ),
        (
            "<|channel|>final<|message|>So.<|end|><|start|>assistant to=ping<|channel|>commentary<|constrain|>json<|message|>{}",
            [text("So."), ("ping", {})],
        ),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>", [thought("Hm.")]),
        ("<|channel|>commentary to=functions.ping<|end|>", [("ping", None)]),
        ("Just text.", [text("Just text.")]),
        ("", []),
        ("<|channel|>analysis<|message|> \n<|end|>", []),
    ]
)
def test_harmony_messages_are_read(raw: str, expected: list[Any]) -> None:
    assert read_exactly("gpt_oss", raw) == expected


def test_call_is_text_if_calls_are_not_allowed() -> None:
    ways: tuple[dict[str, Any], ...] = ({"calls_as_text": True}, {"tools": []})
    for options in ways:
        assert read_exactly("gpt_oss", CALL, **options) == [text('{"a": 1}')], options


def test_a_prompt_may_end_inside_reasoning() -> None:
    raw = "Hm.<|end|><|start|>assistant" + FINAL
    found = read_exactly("gpt_oss", raw, in_reasoning=True)
    assert found == [thought("Hm."), text("Done.")]


QUOTED = '<atem:function_calls>\n<atem:invoke name="ping">\n</atem:invoke>\n</atem:function_calls>'
CALLS = '<atem:invoke name="ping">\n</atem:invoke>\n<atem:invoke name="functions.run">\n<atem:parameter name="cmd">ls</atem:parameter>\n</atem:invoke>'


@for_rows(
    [
        (  # a message to another recipient is dropped
            " to=developer<|message|>log<|eom|><|start|>assistant to=user<|message|>Hi.<|eot|>",
            [text("Hi.")],
        ),
        (f" to=user<|message|>{QUOTED}<|eot|>", [text(QUOTED)]),
        (
            f" to=functions<|message|>so <atem:function_calls>\n{CALLS}\n</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Hi.",
            [("ping", {}), ("run", {"cmd": "ls"}), text("Hi.")],
        ),
    ]
)
def test_messages_of_muse_glimmer_are_read(raw: str, expected: list[Said]) -> None:
    assert read_exactly("muse_glimmer", raw) == expected


def test_inkling_headers_are_read() -> None:
    call = '<|content_invoke_tool_json|>{"args": {"cmd": "ls"}, "name": "run"}'
    assert read_exactly("inkling", call) == [("run", {"cmd": "ls"})]
    following = "<|end_message|><|message_model|><|content_text|>Hi."
    assert read_exactly("inkling", f"run{call}{following}") == [("run", {"cmd": "ls"}), text("Hi.")]
    assert read_exactly("inkling", "ru", FinishReason.LENGTH) == []
    assert read_exactly("inkling", "ru") == [text("ru")]


# -- calls with a body of bare text: any text is read whole, and never in part

BASH = ToolSpec("bash", schema={"properties": {"command": {"type": "string"}}})


def read_bare(raw: str, reason: FinishReason = FinishReason.STOP) -> list[Said]:
    return read_exactly("cwm", raw, reason, tools=[BASH, ToolSpec("ping")])


def test_text_that_ends_a_call_starts_the_next_one() -> None:
    raw = "<tool: bash>\nls\n</tool>\n<tool: bash>\ndate\n</tool>\n"
    assert read_bare(raw) == [("bash", {"command": "ls"}), ("bash", {"command": "date"})]


@for_each(["", "\n", "null", "{}"])
def test_empty_body_is_a_call_without_arguments(body: str) -> None:
    assert read_bare(f"<tool: ping>\n{body}\n</tool>") == [("ping", {})]
