from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from schemas.errors import ErrorKind, Invalid
from services.templates.chat_template import ChatTemplate
from services.tokenization.tokenizer_files import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

USER = [{"role": "user", "content": "hi"}]


def test_template_of_the_model_is_loaded(demo_dir: Path) -> None:
    template = ChatTemplate.of(load_tokenizer(str(demo_dir)))
    assert (
        template.render(USER) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert template.render(USER, generation=False) == "<|im_start|>user\nhi<|im_end|>\n"
    assert {"enable_thinking", "tools", "messages"} <= template.variables


def test_file_overrides_the_template(
    demo_tokenizer: "PreTrainedTokenizerBase", tmp_path: Path
) -> None:
    file = tmp_path / "other.jinja"
    file.write_text("{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}")
    template = ChatTemplate.of(demo_tokenizer, override=str(file))
    assert template.render(USER, variables={"mood": "!"}) == "<|im_end|>hi!"


def test_template_for_tool_use_is_chosen_among_several(
    demo_tokenizer: "PreTrainedTokenizerBase",
) -> None:
    own = demo_tokenizer.chat_template
    try:
        demo_tokenizer.chat_template = {"default": "d", "tool_use": "t"}
        assert ChatTemplate.of(demo_tokenizer).source == "t"
        demo_tokenizer.chat_template = {"default": "d"}
        assert ChatTemplate.of(demo_tokenizer).source == "d"
        demo_tokenizer.chat_template = None
        with pytest.raises(ValueError, match="no chat template"):
            ChatTemplate.of(demo_tokenizer)
    finally:
        demo_tokenizer.chat_template = own


def test_broken_jinja_is_refused(demo_tokenizer: "PreTrainedTokenizerBase") -> None:
    with pytest.raises(ValueError, match="line 2"):
        ChatTemplate(demo_tokenizer, "ok\n{% if %}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "{{ raise_exception('System messages are not for me.') }}",
            "System messages are not for me.",
        ),
        ("{{ messages[0].content + 1 }}", "cannot render"),
        ("{{ messages.append(1) }}", "refuses"),
    ],
)
def test_template_errors_are_errors_of_the_request(
    demo_tokenizer: "PreTrainedTokenizerBase", source: str, message: str
) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        ChatTemplate(demo_tokenizer, source).render(USER)
    assert caught.value.info.kind is ErrorKind.INVALID


@pytest.mark.parametrize("name", ["messages", "tokenize", "add_generation_prompt"])
def test_reserved_variables_are_refused(
    demo_tokenizer: "PreTrainedTokenizerBase", name: str
) -> None:
    with pytest.raises(Invalid, match=f"may not set {name}") as caught:
        ChatTemplate.of(demo_tokenizer).render(USER, variables={name: True})
    assert caught.value.info.param == "chat_template_kwargs"


def test_empty_conversation_is_refused(demo_tokenizer: "PreTrainedTokenizerBase") -> None:
    with pytest.raises(Invalid, match="at least one message"):
        ChatTemplate.of(demo_tokenizer).render([])


def test_history_without_a_user_message_gets_an_empty_one_where_the_template_demands_one(
    demo_tokenizer: "PreTrainedTokenizerBase",
) -> None:
    demand = "{% if 'user' not in messages | map(attribute='role') %}{{ raise_exception('No user query.') }}{% endif %}"
    show = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ mood }}"
    demanding, free = (
        ChatTemplate(demo_tokenizer, demand + show),
        ChatTemplate(demo_tokenizer, show),
    )
    system, said = (
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Hi."},
    )
    for before, rest in (([system], [said]), ([], [said]), ([system], [])):
        messages = [*before, *rest]
        shown = "".join(
            f"[{m['role']}:{m['content']}]"
            for m in [*before, {"role": "user", "content": ""}, *rest]
        )
        assert demanding.render(messages, variables={"mood": "!"}) == shown + "!"
        assert free.render(messages) == "".join(f"[{m['role']}:{m['content']}]" for m in messages)
    assert demanding.render(USER) == free.render(USER)


def test_refusal_for_another_reason_is_the_templates_own(
    demo_tokenizer: "PreTrainedTokenizerBase",
) -> None:
    source = (
        "{{ raise_exception('no answers' if messages[0].role == 'assistant' else 'no users') }}"
    )
    with pytest.raises(Invalid, match="no answers"):
        ChatTemplate(demo_tokenizer, source).render([{"role": "assistant", "content": "Hi."}])
