"""Names of families, those of other servers, and prompts that leave reasoning open."""

import pytest

from services.families import UnknownFamily, families, find_family
from tests.kit.every import for_rows

ALIASES = {
    "qwen25": "hermes",
    "qwen3_xml": "qwen3_coder",
    "openai": "gpt_oss",
    "deepseekv31": "deepseek_v31",
    "deepseek-v4": "deepseek_v4",
    "kimi_k25": "kimi_k2",
    "llama4_json": "llama3_json",
    "phi4_mini_json": "phi4_mini",
    "GLM47": "glm47",
    "exaone4": "hermes",
}


def test_every_name_means_one_family() -> None:
    """Its own name, and the names that other servers have for it."""
    assert {alias: find_family(alias).name for alias in ALIASES} == ALIASES
    names = [(name, find_family(name).name, found.name) for name, found in families().items()]
    assert [one for one in names if len(set(one)) > 1] == []
    tool_names = [alias for f in families().values() for alias in f.tool_parsers]
    reasoning_names = [alias for f in families().values() for alias in f.reasoning_parsers]
    assert len(set(tool_names)) == len(tool_names)
    assert len(set(reasoning_names)) == len(reasoning_names)


@for_rows(
    [
        ("qwen3_codr", "qwen3_coder"),
        ("deepseek_v5", "deepseek_v"),
        ("§", r"qwen3_coder, .*, plain"),
    ]
)
def test_an_unknown_name_is_refused_with_the_nearest_or_all(wrong: str, near: str) -> None:
    with pytest.raises(UnknownFamily, match=near) as caught:
        find_family(wrong)
    names = str(caught.value).partition("did you mean ")[2].rstrip("?").split(", ")
    assert len(set(names)) == len(names)


@for_rows(
    [
        ("qwen3_coder", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3_coder", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3_coder", "what is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        (
            "qwen3_coder",
            "<think>\nold\n</think>\n\nx\n<|im_start|>assistant\n<think>\nSo far",
            True,
        ),
        ("hy_v3", "<think:opensource></think:opensource>", False),
        ("gemma4", "<start_of_turn>model\n<|channel>thought\n<channel|>", False),
        ("kimi_k3", "<|open|>think<|sep|>", True),
        ("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>", True),
    ]
)
def test_a_prompt_leaves_reasoning_open(name: str, tail: str, opens: bool) -> None:
    assert find_family(name).opens_reasoning(tail) is opens
