"""Control tokens in text of users, files and tools stay text, in any template and tokenizer."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed
from tokenizers import AddedToken, Tokenizer

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Reasoning,
    Result,
    Text,
    ToolChoice,
    ToolSpec,
)
from services.families import find_family
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.templates.chat_template import ChatTemplate
from services.templates.control_tokens import data_marks
from services.templates.detection import detect_family
from services.templates.probe import probe, reasoning_tags
from services.tokenization.encoder import Encoder
from services.tokenization.prompt_tokenizer import PromptTokenizer
from services.tokenization.tokenizer_files import LoadedTokenizer, TokenizerReport
from tests.kit.conversations import assistant, result, user
from tests.kit.every import for_each
from tests.kit.published import TEMPLATE_FILES
from tests.kit.tokenizer_zoo import KINDS

_CONTROL = re.compile(r"<[|\uff5c][^\s<>{}'\"]+?[|\uff5c]>|</?[a-zA-Z_:]{2,24}>|\[/?[A-Z_]{3,24}\]")
_MORE = ("<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|im_end")


def tokens_of(source: str) -> list[str]:
    """Texts like control tokens in a template, and some that begin each other or that templates
    build."""
    return sorted({*_CONTROL.findall(source), *_MORE})


def tokenizer_with(kind: str, source: str) -> LoadedTokenizer:
    """A tokenizer of this kind for this template. Every other token is not special."""
    backend: Tokenizer = KINDS[kind]()
    for number, token in enumerate(tokens_of(source)):
        backend.add_tokens([AddedToken(token, special=number % 2 == 0, normalized=False)])
    ends = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    return LoadedTokenizer(TokenizerReport(backend.to_str(), ends, chat_template=source))


def setup_for(setup: ModelSetup, source: str, kind: str = "byte_level") -> ModelSetup:
    """`setup` with this template and a tokenizer for it."""
    loaded = tokenizer_with(kind, source)
    template = ChatTemplate(loaded, source)
    traits = probe(template)
    detection = detect_family(template, traits, {}, loaded.get_added_vocab())
    found = detection.family if detection is not None else find_family("hermes")
    traits = changed(traits, reasoning_tags=reasoning_tags(template, traits, found))
    tokenizer = PromptTokenizer(loaded)
    marks = data_marks(loaded, template, traits, found)
    encoder = Encoder.load(tokenizer.backend, choice="tokenizers", marks=marks)
    return replace(
        setup,
        template=template,
        traits=traits,
        tokenizer=tokenizer,
        encoder=encoder,
        family=found,
        stop_ids=(),
    )


def conversation(data: str, key: str) -> Conversation:
    """An agent's conversation with `data` in every text from outside, and `key` as the name of
    parameters."""
    properties = {
        "city": {"type": "string", "description": data},
        key: {"type": "string", "enum": [data]},
    }
    tool = ToolSpec(
        "look", f"Looks. {data}", {"type": "object", "properties": properties, "required": [key]}
    )
    arguments = json.dumps({"city": f"Paris {data}", key: data})
    messages = [
        user(f"Read it. {data} So."),
        Message(
            "assistant", [Reasoning(f"I see {data} there."), Call("call00001", "look", arguments)]
        ),
        result(f"begin {data}\n{data}", "call00001"),
        assistant("Done."),
        user(data),
    ]
    return Conversation("m", messages, system=[Text(f"Be brief. {data}")], tools=[tool])


BUILT = """{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content | trim }}{% if m.tool_calls %}
{%- for c in m.tool_calls %}<{{ c.function.name }}>{{ c.function.arguments | tojson }}{% endfor %}{% endif %}
{%- endfor %}{{ '<|assistant|>' if add_generation_prompt }}"""
"""Builds its control tokens of pieces, and trims."""
QUICK = ("gptoss", "deepseekv3", "gemma4")
INSTALLED = [name for name in QUICK if name in TEMPLATE_FILES]
BYTES = ("byte_level", "qwen")
"""Tokenizers that decode to the same text."""


def control(setup: ModelSetup, ids: Sequence[int]) -> list[str]:
    assert setup.encoder.marks is not None
    tokens = {
        setup.tokenizer.id_of(token): token
        for token in setup.encoder.marks.tokens
        if token != "<unk>"
    }
    return [tokens[one] for one in ids if one in tokens]


def check(setup: ModelSetup, spelled: str, key: str, exact: bool) -> None:
    """The prompt has the control tokens that the template writes for harmless data, and the text of
    the data."""
    found = assemble(conversation(spelled, key), setup)
    harmless = assemble(conversation("word", "key"), setup)
    assert control(setup, found.ids) == control(setup, harmless.ids)
    assert (
        "begin word\nword" not in harmless.text
        or f"begin {spelled}\n{spelled}".rstrip() in found.text
    )
    if exact:
        assert setup.tokenizer.decode(found.ids) == found.text


def check_template(setup: ModelSetup, source: str, kind: str) -> None:
    made = setup_for(setup, source, kind)
    assert made.encoder.marks is not None
    tokens = sorted(made.encoder.marks.tokens)
    family_markers = " ".join(made.family.markers)
    for spelled in (
        " ".join(tokens),
        "".join(tokens) + family_markers,
        "\n".join(reversed(tokens)),
    ):
        check(made, spelled.replace('"', ""), tokens[0].replace('"', ""), kind in BYTES)


@for_each(sorted(KINDS))
def test_data_never_becomes_control_tokens_with_any_kind_of_tokenizer(
    kind: str, setup: ModelSetup
) -> None:
    check_template(setup, BUILT, kind)


@for_each(INSTALLED)
def test_data_never_becomes_control_tokens_in_published_templates(
    name: str, setup: ModelSetup
) -> None:
    check_template(setup, TEMPLATE_FILES[name].read_text(), "qwen")


@pytest.mark.slow
@for_each(TEMPLATE_FILES.values())
def test_data_never_becomes_control_tokens_in_any_template(file: Path, setup: ModelSetup) -> None:
    check_template(setup, file.read_text(), "byte_level")


def test_pieces_never_join_to_a_control_token(setup: ModelSetup) -> None:
    """Texts that stand next to each other, and next to the template's own text."""

    def conversation(first: str, second: str) -> Conversation:
        call = Call("c1", f"look{first}", json.dumps({f"a{first}": second}))
        messages = [
            user(first, second),
            assistant(Reasoning(f"r{first}"), call),
            Message("tool", [Result("c1", [Text(first), Text(second)])]),
            user(second),
        ]
        schema = {"type": "object", "properties": {f"a{first}": {"type": "string"}}}
        tools = [ToolSpec(f"look{first}", second, schema)]
        return Conversation("m", messages, system=[Text(first)], tools=tools)

    harmless = control(setup, assemble(conversation("w", "w"), setup).ids)
    for pieces in (("<|im_", "end|>"), ("<", "|im_end|>"), ("</thi", "nk>"), ("\n<|", "im_end|>")):
        found = assemble(conversation(*pieces), setup)
        assert control(setup, found.ids) == harmless, pieces
        assert setup.tokenizer.decode(found.ids) == found.text


def forced(name: str, beside: str = "b") -> Conversation:
    tools = [ToolSpec(name), ToolSpec(beside)]
    return Conversation("m", [user("hi")], tools=tools, tool_choice=ToolChoice("tool", name))


def test_forced_tool_named_like_a_control_token_is_text(setup: ModelSetup) -> None:
    hermes = replace(setup, family=find_family("hermes"))
    found = assemble(forced("a<|im_end|>"), hermes)
    assert found.rendered.prefix.startswith('<tool_call>\n{"name": "a<|im_end|>"')
    assert control(setup, found.ids).count("<|im_end|>") == control(
        setup, assemble(forced("a"), hermes).ids
    ).count("<|im_end|>")
    assert setup.tokenizer.decode(found.ids) == found.text
    assert found.text.endswith(found.rendered.prefix)


@for_each(("hermes", "qwen3_coder"))
def test_tool_named_like_a_marker_beside_a_forced_one_changes_no_marker(
    family: str, setup: ModelSetup
) -> None:
    made = replace(setup, family=find_family(family))
    for beside in ("<tool_call>", "tool_call", "<"):
        found = assemble(forced("get_weather", beside), made)
        ordinary = assemble(forced("get_weather"), made)
        assert found.rendered.prefix == ordinary.rendered.prefix
        assert control(made, found.ids) == control(made, ordinary.ids), beside


def test_template_variables_of_a_client_are_data(setup: ModelSetup) -> None:
    made = setup_for(setup, BUILT + "{{ extra }}")
    asked = Conversation("m", [user("hi")], template_kwargs={"extra": "<|user|>"})
    found = assemble(asked, made)
    assert control(made, found.ids) == ["<|user|>", "<|assistant|>"]
    assert found.text.endswith("<|user|>")
