"""A model's chat template: where it comes from, and what it cannot render."""

from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ErrorKind, Invalid
from services.templates.chat_template import ChatTemplate
from services.tokenization.tokenizer_files import load_tokenizer
from tests.kit.every import for_rows
from tests.templates.adapting import template_of, tokenizer_with

USER = [{"role": "user", "content": "hi"}]


def test_template_of_the_model_is_loaded(demo_dir: Path) -> None:
    template = ChatTemplate.of(load_tokenizer(str(demo_dir)))
    question = "<|im_start|>user\nhi<|im_end|>\n"
    assert template.render(USER) == question + "<|im_start|>assistant\n<think>\n"
    assert template.render(USER, generation=False) == question
    assert {"enable_thinking", "tools", "messages"} <= template.variables


def test_file_overrides_the_template(tmp_path: Path) -> None:
    file = tmp_path / "other.jinja"
    file.write_text("{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}")
    template = ChatTemplate.of(tokenizer_with("own"), override=str(file))
    assert template.render(USER, variables={"mood": "!"}) == "<|im_end|>hi!"


def test_template_for_tool_use_is_chosen_among_several() -> None:
    several = {"default": "d", "tool_use": "t"}
    assert ChatTemplate.of(tokenizer_with(several)).source == "t"
    with pytest.raises(ValueError, match="no chat template"):
        ChatTemplate.of(tokenizer_with(None))
    with pytest.raises(ValueError, match="line 2"):
        template_of("ok\n{% if %}")


@for_rows(
    [
        ("{{ raise_exception('System messages are not for me.') }}", "System messages are not fo"),
        ("{{ messages[0].content + 1 }}", "cannot render"),
        ("{{ messages.append(1) }}", "refuses"),
    ]
)
def test_template_errors_are_errors_of_the_request(source: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        template_of(source).render(USER)
    assert caught.value.info.kind is ErrorKind.INVALID


def test_requests_that_no_template_renders_are_refused() -> None:
    with pytest.raises(Invalid, match="may not set messages") as caught:
        template_of("").render(USER, variables={"messages": True})
    assert caught.value.info.param == "chat_template_kwargs"
    with pytest.raises(Invalid, match="at least one message"):
        template_of("").render([])
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(RecursionError, match="nested too deeply"):
        template_of("{{ x | tojson }}").render(USER, variables={"x": deep})


def test_history_without_a_user_message_gets_an_empty_one_where_the_template_demands_one() -> None:
    def shown(*messages: dict[str, Any]) -> str:
        return "".join(f"[{message['role']}:{message['content']}]" for message in messages)

    show = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ mood }}"
    roles = "messages | map(attribute='role')"
    demand = f"{{% if 'user' not in {roles} %}}{{{{ raise_exception('No user.') }}}}{{% endif %}}"
    demanding, free = template_of(demand + show), template_of(show)
    system = {"role": "system", "content": "Be brief."}
    said = {"role": "assistant", "content": "Hi."}
    question = {"role": "user", "content": ""}
    for before, rest in (([system], [said]), ([], [said]), ([system], [])):
        messages = [*before, *rest]
        text = demanding.render(messages, variables={"mood": "!"})
        assert text == shown(*before, question, *rest) + "!"
        assert free.render(messages) == shown(*messages)
    assert demanding.render(USER) == free.render(USER)

    # Where the question does not help, the template's first refusal counts.
    first = "'no answers' if messages[0].role == 'assistant' else 'no users'"
    with pytest.raises(Invalid, match="no answers"):
        template_of(f"{{{{ raise_exception({first}) }}}}").render([said])
