import itertools
import json
from dataclasses import replace as changed
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Conversation,
    Grammar,
    Message,
    OutputFormat,
    Part,
    RawPrompt,
    Reasoning,
    Result,
    Sampling,
    Text,
    Thinking,
    ToolChoice,
    ToolSpec,
)
from schemas.errors import ContextOverflow, Invalid
from schemas.frames import pack_ids
from services.families import open_parser
from services.frontend.apis.messages.request import parse
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt, assemble, encode_prompt
from services.preprocessor.render import allowed_tools
from tests.kit.examples import examples
from tests.templates.adapting import assistant, user

BASH = ToolSpec(
    "Bash", "run a command", {"type": "object", "properties": {"command": {"type": "string"}}}
)
CALL = Call("c1", "Bash", '{"command": "ls"}')
HEADER = "x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=cli;"
THINKS = "<|im_start|>assistant\n<think>\n"
THINKS_NOT = THINKS + "\n</think>\n\n"
THINKING, NO_THINKING = {"enable_thinking": True}, {"enable_thinking": False}


def conversation(*messages: Message, **more: Any) -> Conversation:
    return Conversation("m", list(messages) or [user("hi")], **more)


def choose(mode: str, name: str | None = None) -> dict[str, Any]:
    return {"tools": [BASH], "tool_choice": ToolChoice(mode, name)}  # type: ignore[arg-type]


ENDS: list[tuple[dict[str, Any], str, str]] = [
    ({}, THINKS, ""),
    ({"thinking": Thinking("disabled")}, THINKS_NOT, ""),
    ({"format": OutputFormat("json_schema", schema={})}, THINKS_NOT, ""),
    (choose("none"), THINKS, ""),
    (choose("any"), THINKS_NOT, "<tool_call>\n<function="),
    (
        {**choose("tool", "Bash"), "thinking": Thinking("enabled")},
        THINKS_NOT,
        "<tool_call>\n<function=Bash>\n",
    ),
]
"""What a request asks for, how its prompt ends, and what of the answer the prompt has."""


class TestEnds:
    """The end of the prompt, and the parser's state for it."""

    @pytest.mark.parametrize(("more", "end", "prefix"), ENDS)
    def test_prompt_ends_as_the_request_asks(
        self, setup: ModelSetup, more: dict[str, Any], end: str, prefix: str
    ) -> None:
        prompt = assemble(conversation(**more), setup)
        question = "<|im_start|>user\nhi<|im_end|>\n"
        assert prompt.text.endswith(question + end + prefix)
        assert more or prompt.text == question + end
        assert setup.tokenizer.decode(prompt.ids) == prompt.text
        assert prompt.rendered.prefix == prefix
        assert prompt.rendered.in_reasoning == (end == THINKS)
        assert bool(prompt.tools) == ("tools" in more)

    def test_parser_continues_from_the_prefix(self, setup: ModelSetup) -> None:
        prompt = assemble(conversation(**choose("tool", "Bash")), setup)
        parser = open_parser(
            setup.family.name,
            tools=prompt.tools,
            in_reasoning=prompt.rendered.in_reasoning,
            prefix=prompt.rendered.prefix,
        )
        events = parser.feed("<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>")
        assert next(type(event).__name__ for event in events) == "BlockStart"
        assert "".join(getattr(event, "text", "") for event in events) == '{"command": "ls"}'

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"tool_choice": ToolChoice("any")}, "while providing tools"),
            (choose("tool", "Grep"), "not among the tools: Grep"),
        ],
    )
    def test_impossible_choice_is_refused(
        self, setup: ModelSetup, more: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(Invalid, match=message) as caught:
            assemble(conversation(**more), setup)
        assert caught.value.info.param == "tool_choice"

    @pytest.mark.parametrize(
        "text", ["The answer is", "The answer is \n", "a<|im_end|>b", "</think>"]
    )
    def test_last_text_of_the_assistant_is_continued(self, setup: ModelSetup, text: str) -> None:
        prompt = assemble(conversation(user("hi"), assistant(Reasoning("r"), Text(text))), setup)
        assert prompt.text.endswith("<|im_start|>assistant\n<think>\nr\n</think>\n\n" + text)
        assert not prompt.rendered.in_reasoning


class TestLimits:
    def test_max_tokens_is_always_set(self, setup: ModelSetup) -> None:
        prompt = assemble(conversation(), setup, window=1000)
        assert prompt.max_tokens == prompt.sampling.max_tokens == 1000 - len(prompt.ids)
        assert prompt.window_limited

    def test_limit_of_the_client_is_kept(self, setup: ModelSetup) -> None:
        prompt = assemble(conversation(sampling=Sampling(max_tokens=7, temperature=0.5)), setup)
        assert (prompt.max_tokens, prompt.window_limited) == (7, False)
        assert prompt.sampling == Sampling(max_tokens=7, temperature=0.5)

    def test_too_long_prompt_is_refused(self, setup: ModelSetup) -> None:
        with pytest.raises(ContextOverflow, match=r"prompt is too long: \d+ tokens > 112 maximum"):
            assemble(conversation(user("word " * 500)), setup, window=119)

    def test_operators_window_caps_the_workers(self, setup: ModelSetup) -> None:
        capped = changed(setup, window_cap=500, max_model_len=500)
        assert [capped.effective_window(w) for w in (None, 400, 600)] == [500, 400, 500]
        assert [setup.effective_window(w) for w in (None, 400, 10**6)] == [262_144, 400, 10**6]

    def test_defaults_of_the_model_fill_unset_values(self, setup: ModelSetup) -> None:
        tuned = changed(setup, sampling=Sampling(temperature=0.6, top_p=0.95, top_k=20))
        sampling = assemble(conversation(sampling=Sampling(top_p=0.5)), tuned).sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.5, 20)


def test_preamble_is_stripped_by_default(setup: ModelSetup) -> None:
    with_header = conversation(system=[Text(HEADER), Text("Be brief.")])
    prompt = assemble(with_header, setup)
    assert prompt.ids == assemble(conversation(system=[Text("Be brief.")]), setup).ids
    left = assemble(with_header, changed(setup, strip_preamble=False))
    assert HEADER in left.text


def test_parser_gets_tools_as_the_model_sees_them(setup: ModelSetup) -> None:
    tools = [
        ToolSpec("open", namespace="browser"),
        ToolSpec("apply_patch", kind="custom"),
        replace(BASH, deferred=True),
    ]
    parser_tools = assemble(conversation(tools=tools), setup).tools
    assert [tool.name for tool in parser_tools] == ["browser__open", "apply_patch", "Bash"]
    assert parser_tools[1].schema["required"] == ["input"]


@given(st.text(), st.text(), st.lists(st.text(), max_size=3))
@settings(max_examples=examples(50))
def test_string_and_its_single_block_have_the_same_tokens(
    setup: ModelSetup, system: str, asked: str, results: list[str]
) -> None:
    """Claude Code sends a message as a list of blocks while it is the last, and as a string
    later."""

    def ids(wrap: Any) -> list[int]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": wrap(asked)}]
        for number, result in enumerate(results):
            call = {"type": "tool_use", "id": f"c{number}", "name": "Bash", "input": {}}
            done = {"type": "tool_result", "tool_use_id": f"c{number}", "content": wrap(result)}
            messages += [
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [done]},
            ]
            messages += [{"role": "system", "content": wrap(f"note {number}")}]
        body = {"model": "m", "max_tokens": 8, "system": wrap(system), "messages": messages}
        return list(assemble(parse(json.dumps(body).encode(), {}).conversation, setup).ids)

    assert ids(lambda text: text + ".") == ids(lambda text: [{"type": "text", "text": text + "."}])


# -- append-only
# --------------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: bool(text.strip())
)
VALUES = st.one_of(
    WORDS, st.integers(), st.booleans(), st.none(), st.lists(st.integers(), max_size=3)
)
ARGUMENTS = st.dictionaries(st.sampled_from(["path", "command", "n"]), VALUES, max_size=3)
SPOKEN = st.lists(
    st.one_of(WORDS.map(Reasoning), WORDS.map(Text), ARGUMENTS), min_size=1, max_size=6
)


def spoken_parts(drawn: list[Any], number: int) -> list[Part]:
    """The parts without adjacent texts, which no model can write."""
    parts: list[Part] = []
    for index, part in enumerate(drawn):
        if isinstance(part, dict):
            parts.append(Call(f"c{number}.{index}", "Bash", json.dumps(part)))
        elif not (isinstance(part, Text) and parts and isinstance(parts[-1], Text)):
            parts.append(part)
    return parts


def written(parts: list[Part]) -> str:
    """What a model of the demo's kind writes after `<think>\\n`, made without the template."""
    pieces = [] if isinstance(parts[0], Reasoning) else ["<think>\n\n</think>\n\n"]
    for before, part in zip([None, *parts], parts, strict=False):
        if isinstance(before, Call) or (isinstance(before, Text) and isinstance(part, Reasoning)):
            pieces.append("\n")
        elif isinstance(before, Text):
            pieces.append("\n\n")
        if isinstance(part, Reasoning):
            pieces.append(f"<think>\n{part.text}\n</think>\n\n")
        elif isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, Call):
            values = json.loads(part.arguments).items()
            shown = (
                (key, value if isinstance(value, str) else json.dumps(value))
                for key, value in values
            )
            body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in shown)
            pieces.append(f"<tool_call>\n<function=Bash>\n{body}</function>\n</tool_call>")
    return "".join(pieces).removeprefix("<think>\n")


@given(
    st.lists(
        st.tuples(SPOKEN, st.booleans(), st.sampled_from(["enabled", "disabled"])),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(60))
def test_each_prompt_begins_with_the_last_one_and_its_answer(
    setup: ModelSetup, steps: list[tuple[list[Any], bool, str]]
) -> None:
    """However the model mixes reasoning, text and calls, and with thinking on or off."""
    messages = [user("begin")]
    expected = ""
    for number, (drawn, instructed, thinking) in enumerate(steps):
        prompt: Prompt = assemble(
            conversation(
                *messages,
                system=[Text("Be brief.")],
                tools=[BASH],
                thinking=Thinking(thinking),  # type: ignore[arg-type]
            ),
            setup,
        )
        assert prompt.text.startswith(expected)
        parts = spoken_parts(drawn, number)
        if thinking == "disabled":
            parts = list(itertools.dropwhile(lambda part: isinstance(part, Reasoning), parts)) or [
                Text("Yes.")
            ]
        answer = written(parts)
        if thinking == "disabled":
            answer = answer.removeprefix("\n</think>\n\n")
        expected = prompt.text + answer + "<|im_end|>\n"
        messages.append(Message("assistant", parts))
        results = [Result(part.call_id, [Text("done")]) for part in parts if isinstance(part, Call)]
        messages.append(Message("tool", list(results)) if results else user("go on"))
        if instructed:
            messages.append(Message("system", [Text("The date has changed.")]))
    assert assemble(
        conversation(*messages, system=[Text("Be brief.")], tools=[BASH]), setup
    ).text.startswith(expected)


class TestRaw:
    """A prompt of /v1/completions."""

    def test_raw_text_is_encoded_unchanged(self, setup: ModelSetup) -> None:
        text = HEADER + "\n  Once <|im_start|> upon\n"
        prompt = assemble(raw(RawPrompt(text)), setup)
        assert list(prompt.ids) == setup.tokenizer.encode(text, True)
        rendered = prompt.rendered
        assert (rendered.in_reasoning, rendered.prefix, prompt.tools) == (False, "", [])
        assert set(setup.stop_ids) <= set(prompt.stop_ids)

    def test_raw_ids_are_unchanged(self, setup: ModelSetup) -> None:
        ids = [5, 1, 0, setup.tokenizer.vocab_size - 1]
        prompt = assemble(raw(RawPrompt(token_ids=pack_ids(ids))), setup)
        assert list(prompt.ids) == ids

    @pytest.mark.parametrize(
        "prompt",
        [
            RawPrompt(""),
            RawPrompt(),
            RawPrompt(token_ids=b"abc"),
            RawPrompt(token_ids=pack_ids([10**6])),
        ],
    )
    def test_invalid_raw_prompt_is_refused(self, setup: ModelSetup, prompt: RawPrompt) -> None:
        for make in (assemble, encode_prompt):
            with pytest.raises(Invalid) as refused:
                make(raw(prompt), setup)
            assert refused.value.info.param == "prompt"


def raw(prompt: RawPrompt, **sampling: Any) -> Conversation:
    return Conversation("m", [], prompt=prompt, sampling=Sampling(**sampling))


class TestStopIds:
    def test_stop_ids_of_the_client_are_added(self, setup: ModelSetup) -> None:
        own = list(setup.stop_ids)
        assert assemble(
            conversation(sampling=Sampling(stop_token_ids=[5, own[0]])), setup
        ).stop_ids == [*own, 5]

    def test_only_the_clients_stop_ids_count_with_ignore_eos(self, setup: ModelSetup) -> None:
        sampling = Sampling(stop_token_ids=[5], ignore_eos=True)
        assert assemble(conversation(sampling=sampling), setup).stop_ids == [5]


OWN = ToolSpec("read", namespace="files")
OTHER = ToolSpec("read", namespace="mail")
BARE = ToolSpec("read")


class TestChoice:
    """Forced and allowed calls."""

    def forced(self, setup: ModelSetup, choice: ToolChoice, *tools: ToolSpec) -> str:
        prefix = assemble(
            conversation(tools=list(tools), tool_choice=choice), setup
        ).rendered.prefix
        return prefix.removeprefix("<tool_call>\n<function=").removesuffix(">\n")

    def test_namespaced_tool_is_forced_by_its_names(self, setup: ModelSetup) -> None:
        tools = (OWN, OTHER, BARE)
        assert (
            self.forced(setup, ToolChoice("tool", "read", namespace="mail"), *tools) == "mail__read"
        )
        assert self.forced(setup, ToolChoice("tool", "read"), *tools) == "read"
        assert self.forced(setup, ToolChoice("tool", "files__read"), *tools) == "files__read"
        assert self.forced(setup, ToolChoice("tool", "read"), OWN) == "files__read"
        with pytest.raises(Invalid, match="calendar__read"):
            self.forced(setup, ToolChoice("tool", "read", namespace="calendar"), *tools)

    def test_only_allowed_tool_is_forced(self, setup: ModelSetup) -> None:
        assert self.forced(setup, ToolChoice("any", allowed=["Bash"]), BASH, OWN) == "Bash"
        assert (
            self.forced(setup, ToolChoice("any", allowed=["files__read"]), BASH, OWN)
            == "files__read"
        )
        assert self.forced(setup, ToolChoice("any", allowed=["Bash", "read"]), BASH, OWN) == ""

    def test_unknown_allowed_tool_is_refused(self, setup: ModelSetup) -> None:
        with pytest.raises(Invalid, match="wipe"):
            assemble(conversation(tools=[BASH], tool_choice=ToolChoice(allowed=["wipe"])), setup)

    def test_bare_name_allows_every_tool_of_that_name(self) -> None:
        tools = [OWN, OTHER, BASH]
        assert allowed_tools(
            conversation(tools=tools, tool_choice=ToolChoice(allowed=["read"]))
        ) == [
            "files__read",
            "mail__read",
        ]


def test_grammar_of_a_freeform_tool_is_in_the_prompt(setup: ModelSetup) -> None:
    grammar = Grammar("lark", "start: /a+/\n")
    patch = ToolSpec("apply_patch", "Edits files.", kind="custom", grammar=grammar)
    text = assemble(conversation(tools=[patch]), setup).text
    description = "Edits files.\n\n`input` must match this Lark grammar:\nstart: /a+/\n"
    assert json.dumps(description) in text


def test_dropped_reasoning_is_not_in_the_prompt(setup: ModelSetup) -> None:
    """The reasoning of the present tool loop stays: it explains its calls."""
    messages = [
        user("one"),
        assistant(Reasoning("FIRST"), CALL),
        Message("tool", [Result("c1", [Text("r")])]),
        assistant(Reasoning("SECOND"), Text("t")),
        user("two"),
        assistant(Reasoning("THIRD"), replace(CALL, call_id="c2")),
        Message("tool", [Result("c2", [Text("r")])]),
    ]
    texts = {
        history: assemble(
            conversation(*messages, tools=[BASH], thinking=Thinking(history=history)), setup
        ).text
        for history in ("default", "keep", "drop")
    }
    assert [mark in texts["drop"] for mark in ("FIRST", "SECOND", "THIRD")] == [False, False, True]
    assert all(mark in texts["keep"] for mark in ("FIRST", "SECOND", "THIRD"))
    assert texts["keep"] == texts["default"]
