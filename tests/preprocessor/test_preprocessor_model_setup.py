"""What is loaded of a model: settings, generation defaults, the parser of its calls."""

import json
import shutil
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Sampling
from services.families import UnknownFamily
from services.preprocessor.model.model_setup import ModelSetup
from services.runtime.config.stages import PreprocessorConfig
from services.tokenization.tokenizer_files import LoadedTokenizer
from turnwire_tools.script.demo_model import build_demo_model

DESCRIPTION: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<musing>", "close_pattern": r"</musing>\s*"},
        "tool_calls": {
            "open_pattern": r'<act to="(?P<name>[^"\n]+)">',
            "close_pattern": r"</act>\s*",
            "content": "json",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*"},
    },
}
_CALL = """{{- '<act to="' + call.function.name + '">' + call.function.arguments | tojson + '</act>' }}"""


def describe_model(path: Path) -> Path:
    """Turns the demo model's directory at `path`, which is built if it is missing, into one that
    describes itself."""
    if not (path / "chat_template.jinja").exists():
        build_demo_model(path)
    template = (path / "chat_template.jinja").read_text(encoding="utf-8")
    before, _, rest = template.partition("{%- macro render_call(call) %}")
    _, _, after = rest.partition("{%- endmacro %}")
    template = before + "{%- macro render_call(call) %}\n    " + _CALL + "\n{%- endmacro %}" + after
    template = template.replace("<think>", "<musing>").replace("</think>", "</musing>")
    start, end = template.index("'<tool_call>"), template.index("result comes back")
    shown = """'<act to="TOOL_NAME">{"ARGUMENT_NAME": "value"}</act>\\n\\n' }}\n    {{- 'After the last call every """
    template = template[:start] + shown + template[end:]
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "response_template": DESCRIPTION}))
    return path


@pytest.fixture
def model_dir(
    demo_dir: Path, tmp_path: Path, demo_tokenizer: LoadedTokenizer, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Its tokenizer is not read again for each test: that takes another process and a second."""

    def load_tokenizer(model: str, **_: object) -> LoadedTokenizer:
        tokenizer = copy(demo_tokenizer)
        tokenizer.chat_template = Path(model, "chat_template.jinja").read_text()
        return tokenizer

    monkeypatch.setattr("services.preprocessor.model.model_setup.load_tokenizer", load_tokenizer)
    return Path(shutil.copytree(demo_dir, tmp_path / "my-model"))


def load(model_dir: Path, **options: Any) -> ModelSetup:
    return ModelSetup.load(PreprocessorConfig(model=str(model_dir), **options))


def edit(model_dir: Path, name: str, **changes: Any) -> None:
    file = model_dir / name
    document = json.loads(file.read_text()) | changes
    kept = {key: value for key, value in document.items() if value is not None}
    file.write_text(json.dumps(kept))


def test_demo_model_is_loaded(setup: ModelSetup) -> None:
    assert setup.family.name == "qwen3_coder"
    assert setup.max_model_len == 262_144
    card = setup.card
    assert (card.name, card.max_model_len, card.family) == ("turnwire-demo", 262_144, "qwen3_coder")
    assert (card.reasoning, card.efforts, card.switchable, card.tools) == (True, [], True, True)
    assert card.created > 1_700_000_000


def test_operators_settings_take_precedence(model_dir: Path) -> None:
    setup = load(
        model_dir,
        served_model_name="acme/coder,gpt-5.5",
        aliases=["coder"],
        max_model_len=4096,
        max_output_tokens=1024,
        family="hermes",
        template_kwargs={"enable_thinking": False},
        strip_anthropic_preamble=False,
    )
    assert (setup.card.name, setup.card.aliases) == ("acme/coder", ["gpt-5.5", "coder"])
    assert setup.card.max_output_tokens == 1024
    assert setup.card.max_model_len == setup.max_model_len == setup.effective_window(8192) == 4096
    assert setup.family.name == "hermes"
    assert setup.template_kwargs == {"enable_thinking": False}
    assert not setup.strip_preamble


def test_generation_config_is_read(model_dir: Path) -> None:
    sampling = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    edit(model_dir, "generation_config.json", do_sample=True, eos_token_id=5, **sampling)
    setup = load(model_dir)
    assert setup.sampling == Sampling(**sampling)  # type: ignore[arg-type]
    ends = {setup.tokenizer.id_of(end) for end in ("<|im_end|>", "<|endoftext|>")}
    assert setup.stop_ids[0] == 5
    assert ends <= {*setup.stop_ids}


def test_missing_context_window_is_refused(model_dir: Path) -> None:
    edit(model_dir, "config.json", max_position_embeddings=None)
    edit(model_dir, "tokenizer_config.json", model_max_length=None)
    with pytest.raises(ValueError, match="max_model_len"):
        load(model_dir)
    assert load(model_dir, max_model_len=100).max_model_len == 100


def test_calls_that_no_parser_reads_are_refused(model_dir: Path) -> None:
    calls = "{% for c in m.tool_calls or [] %}%%{{ c.function.arguments }}%%{% endfor %}"
    template = "{% for m in messages %}{{ m.content }}" + calls + "{% endfor %}"
    (model_dir / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match=r"no parser reads the tool calls .* qwen3_coder"):
        load(model_dir)
    with pytest.raises(ValueError, match=r"\(none: no calls\)"):
        load(model_dir, reasoning_parser="qwen3")
    setup = load(model_dir, tool_call_parser="none", reasoning_parser="qwen3")
    assert setup.family.name == "plain+qwen3_coder"


@pytest.fixture
def described_dir(model_dir: Path) -> Path:
    return describe_model(model_dir)


def test_description_is_taken_where_no_family_reads_the_calls(described_dir: Path) -> None:
    setup = load(described_dir)
    assert setup.family.title == "response_template"
    assert setup.family.style.call.startswith('<act to="{name}">')
    assert setup.evidence == (
        "no family reads the model's calls, and its tokenizer_config.json has a response_template",
        "it reads the calls that the chat template writes",
    )
    assert setup.card.family == setup.family.name


def test_description_in_a_file_precedes_the_family(model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"response_template": DESCRIPTION}))
    assert load(model_dir, response_template=str(file)).family.title == "response_template"
    with pytest.raises(ValueError, match="response_template takes the place of"):
        load(model_dir, response_template=str(file), family="hermes")


@pytest.mark.parametrize(
    ("calls", "reasoning", "name"),
    [
        ("llama3_json", "deepseek_r1", "llama3_json+deepseek_r1"),
        ("qwen3_coder", "qwen3", "qwen3_coder"),
        (None, "mistral", "qwen3_coder+mistral"),
    ],
)
def test_parsers_of_calls_and_reasoning_are_combined(
    model_dir: Path, calls: str | None, reasoning: str, name: str
) -> None:
    setup = load(model_dir, tool_call_parser=calls, reasoning_parser=reasoning)
    assert setup.family.name == setup.card.family == name
    assert setup.evidence


@pytest.mark.parametrize(
    ("calls", "reasoning", "message"),
    [
        (None, "qwen33", r"no parser is called 'qwen33'; did you mean qwen3"),
        ("hermes", "granite4", "granite4 reads no reasoning.* deepseek_r1"),
        ("inkling", "qwen3", "with the calls of qwen3_coder"),
    ],
)
def test_incompatible_parsers_are_refused(
    model_dir: Path, calls: str | None, reasoning: str, message: str
) -> None:
    with pytest.raises(UnknownFamily, match=message):
        load(model_dir, tool_call_parser=calls, reasoning_parser=reasoning)
