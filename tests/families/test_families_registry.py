import pytest

from services.families import UnknownFamily, families, family
from services.families.grammar.shapes import Shape
from tests.kit.every import for_each, for_rows

ALIASES = {
    "qwen25": "hermes",
    "qwen3_xml": "qwen3_coder",
    "openai": "gpt_oss",
    "harmony": "gpt_oss",
    "deepseekv31": "deepseek_v31",
    "deepseek-v4": "deepseek_v4",
    "kimi_k25": "kimi_k2",
    "minimax-m2": "minimax_m2",
    "minimax-append-think": "minimax_m2_append_think",
    "nano-v3": "nemotron_v3",
    "llama4_json": "llama3_json",
    "phi4_mini_json": "phi4_mini",
    "cohere_command4": "cohere_command",
    "granite-20b-fc": "granite_20b_fc",
    "interns1": "internlm",
    "apertus2509": "apertus",
    "laguna": "poolside_v1",
    "nanbeige": "qwen3_coder",
    "Kimi-K3": "kimi_k3",
    "GLM47": "glm47",
    "kolibri1": "qwen3_coder",
    "berrylm": "qwen3_coder",
    "iquest_coder": "qwen3_coder",
    "exaone4": "hermes",
    "nemotron_json": "nemotron_deci",
    "openpangu_v2": "lfm2",
    "spark3": "spark25",
}


def test_names_of_other_servers_are_aliases() -> None:
    assert {alias: family(alias).name for alias in ALIASES} == ALIASES


def test_every_family_is_found_by_its_own_name() -> None:
    assert all(family(name).name == name == found.name for name, found in families().items())


def test_every_name_means_one_family() -> None:
    tool_names = [alias for f in families().values() for alias in f.tool_parsers]
    reasoning_names = [alias for f in families().values() for alias in f.reasoning_parsers]
    assert len(set(tool_names)) == len(tool_names)
    assert len(set(reasoning_names)) == len(reasoning_names)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("qwen3_codr", "qwen3_coder"), ("glm-46", "glm4"), ("deepseek_v5", "deepseek_v")],
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownFamily, match=near) as caught:
        family(wrong)
    names = str(caught.value).partition("did you mean ")[2].rstrip("?").split(", ")
    assert len(set(names)) == len(names)


def test_unknown_name_without_a_near_match_lists_all_names() -> None:
    with pytest.raises(UnknownFamily, match=r"qwen3_coder, .*, plain"):
        family("§")


@for_each(list(families()))
def test_fields_of_a_family_are_consistent(name: str) -> None:
    found = families()[name]
    assert found.models
    if found.think is not None and name != "minimax_m2_append_think":
        written = found.style.write_reasoning("hm")
        opener, closer = found.think
        assert opener in written or opener.removeprefix("<|start|>assistant") in written
        assert closer in written
    if found.style.call:
        call = found.style.write_call("ping", {"cmd": "x"})
        assert call.startswith(found.style.call_prefix("ping"))
        assert found.style.call_prefix("ping").startswith(found.style.call_prefix(None))
        assert "ping" not in found.style.call_prefix(None)
        words = [
            word for word in found.evidence if word not in ("<SPECIAL_", "<beginning_of_sentence>")
        ]
        whole = found.style.write_reasoning("hm") + found.style.write_text("t") + call
        assert all(
            word in whole or word in ("tool_name", "<response>", "<answer>") for word in words
        ), words
    assert all(
        Shape(marker).text == Shape(marker).head for marker in (*found.markers, *found.stops)
    )


@for_rows(
    [
        ("qwen3_coder", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3_coder", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3_coder", "what is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        (
            "qwen3_coder",
            "<think>\nold\n</think>\n\nx<|im_end|>\n<|im_start|>assistant\n<think>\nSo far",
            True,
        ),
        ("hy_v3", "<think:opensource>", True),
        ("hy_v3", "<think:opensource></think:opensource>", False),
        ("k2_horizon", "<ifm|think_fast>", True),
        ("gemma4", "<start_of_turn>model\n<|channel>thought\n<channel|>", False),
        ("kimi_k3", "<|open|>think<|sep|>", True),
        ("kimi_k3", "<|open|>response<|sep|>", False),
        ("gpt_oss", "<|start|>assistant", False),
        ("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>", True),
        ("granite4", "<think>", False),
    ]
)
def test_a_prompt_leaves_reasoning_open(name: str, tail: str, opens: bool) -> None:
    assert family(name).opens_reasoning(tail) is opens
