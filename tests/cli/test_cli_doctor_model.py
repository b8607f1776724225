"""The findings of the doctor on a model."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from services.cli.doctor.model import check_model, check_weights
from services.cli.doctor.report import Finding
from services.runtime.config.stages import PreprocessorConfig, WorkerConfig


@pytest.fixture(scope="session")
def demo(demo_dir: Path) -> str:
    return str(demo_dir)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


@pytest.mark.usefixtures("quick_tokenizer")
def test_complete_model_is_ok(demo: str) -> None:
    found = by_name(check_model(WorkerConfig(model=demo), PreprocessorConfig(model=demo), None))
    good = ["tokenizer", "template", "parser", "history", "turns", "context"]
    statuses = dict.fromkeys(good, "ok") | {"images": "note", "weights": "note"}
    assert {name: finding.status for name, finding in found.items()} == statuses
    assert "262144 tokens" in found["context"].text


@pytest.mark.usefixtures("quick_tokenizer")
def test_model_that_does_not_fit_the_settings_is_reported(demo: str, tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    worker = WorkerConfig(model=demo, engine="transformers", max_model_len=1_000_000)
    preprocessor = PreprocessorConfig(model=demo, chat_template=str(template))
    found = by_name(check_model(worker, preprocessor, None))
    assert (found["template"].status, found["context"].status) == ("warn", "warn")
    assert found["weights"].status == "fail"
    template.write_text("{% if %}")
    (broken,) = check_model(worker, preprocessor, None)
    assert (broken.status, broken.about) == ("fail", "model")


def test_engine_over_a_server_needs_no_weights(demo: str) -> None:
    for engine in ("vllm-server", "sglang-server", "llama-server"):
        assert check_weights(WorkerConfig(model=demo, engine=engine)).status == "note"
        of_hub = check_weights(WorkerConfig(model="acme/m", engine=engine))
        assert "downloaded" not in of_hub.text
