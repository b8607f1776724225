"""The family of a model is found in its chat template, its type and its vocabulary."""

from services.families import Family, families
from services.families.markup_evidence import detect
from tests.kit.every import for_each, for_rows

QWEN = "{{- '<tool_call>\\n<function=' + name + '>\\n' }}{{- '<parameter=' + k + '>\\n' }}"
HERMES = '{{- \'\\n<tool_call>\\n{\\"name\\": \\"\' }}{{- tool_call.name }}{{- \'\\", \\"arguments\\": \' }}'
GLM45 = "{{ '\\n<tool_call>' + n }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n</tool_call>"
GLM47 = "<tool_call>{{ n }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value></tool_call>"


@for_rows(
    [
        ("qwen3_next", QWEN, (), "qwen3_coder"),
        ("qwen3", HERMES, (), "hermes"),
        ("granitemoehybrid", HERMES, (), "granite4"),
        ("glm4_moe", GLM45, (), "glm45"),
        ("glm4_moe", GLM47, (), "glm47"),
        (
            "lfm2",
            "{{ tools }}",
            ("<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"),
            "lfm2",
        ),
        ("deepseek_v4", "", ("｜DSML｜", "<think>", "</think>"), "deepseek_v4"),
        ("", None, ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), "kimi_k3"),
        ("", "{{ '<think>' + r + '</think>' }}", (), "deepseek_r1"),
    ]
)
def test_family_is_detected_from_model_files(
    model_type: str, template: str | None, tokens: tuple[str, ...], name: str
) -> None:
    found = detect({"model_type": model_type}, template, tokens)
    assert found is not None
    assert found.family.name == name


def test_model_type_may_be_one_level_down() -> None:
    found = detect({"text_config": {"model_type": "gemma4_text"}}, None)
    assert found is not None
    assert found.family.name == "gemma4"


@for_rows(
    [
        ("gpt2", []),
        ("lfm2", ["<think>", "</think>"]),
        ("llama", ["<|tool_call_start|>", "<|tool_call_end|>"]),
    ]
)
def test_no_family_is_detected_without_evidence(model_type: str, tokens: list[str]) -> None:
    assert detect({"model_type": model_type}, "{{ messages }}", tokens) is None


def test_the_evidence_is_shown() -> None:
    found = detect({"model_type": "nemotron_h"}, QWEN, ["<tool_call>", "<think>", "<other>"])
    assert found is not None
    assert found.evidence == (
        "the chat template writes '<tool_call>', '<function=', '<parameter='",
        "config.json has model_type 'nemotron_h'",
        "the tokenizer has the tokens <tool_call>, <think>",
    )
    also = {"qwen3_coder", "step3p5", "step5", "mimo", "granite_thinking"}
    assert {f.name for f in found.also} == also


@for_each([family for family in families().values() if family.evidence and family.style.call])
def test_each_family_is_detected_from_its_own_markup(family: Family) -> None:
    """A family's own writing speaks for it or for one with the same markup."""
    style = family.style
    prose = style.write_reasoning("r") + "".join(family.evidence) + style.write_text("t")
    text = prose + style.write_call("f", {"k": "v"})
    found = detect({"model_type": next(iter(family.model_types), "")}, text)
    assert found is not None
    assert family in (found.family, *found.also)
