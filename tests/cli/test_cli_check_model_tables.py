"""The tables of a file of models, and their problems."""

from pathlib import Path

import pytest

from services.cli.up.specs import make_specs
from services.runtime.config.loader import ConfigError
from tests.cli.up_plans import MODELS, child, models_file, plan


def test_each_model_of_a_file_has_processes_and_settings_of_its_own(tmp_path: Path) -> None:
    made = plan(models_file(tmp_path), "--slots=9", "--parsers=2", "--frontends=2")
    assert not made.demo
    assert [model.name for model in made.models] == ["coder-1", "acme/small"]
    specs = make_specs(made, "nats://n:1", [81, 82], {}, range(9000, 9020))
    assert [spec.name for spec in specs] == [
        *("preprocessor-coder_1-1", "preprocessor-acme_small-1"),
        *("worker-coder_1-1", "worker-coder_1-2", "worker-acme_small-1", "worker-acme_small-2"),
        *("frontend-1", "frontend-2"),
        *("parser-coder_1-1", "parser-coder_1-2", "parser-acme_small-1", "parser-acme_small-2"),
    ]
    groups = {spec.name: spec.group for spec in specs}
    assert (groups["worker-coder_1-1"], groups["frontend-1"]) == ("coder_1", "")

    coder = child(made, "worker-coder_1-1")
    assert (coder.model, coder.model_name, coder.slots) == ("acme/coder", "coder-1", 3)
    assert coder.trust_remote_code
    small = [child(made, f"worker-acme_small-{number}") for number in (1, 2)]
    assert [worker.engine_url for worker in small] == ["http://a:1", "http://b:1"]
    assert (small[0].model_name, small[0].slots) == ("acme/small", 9)
    preprocessor = child(made, "preprocessor-coder_1-1")
    assert preprocessor.aliases == ["coder", "best"]
    assert preprocessor.template_kwargs == {"enable_thinking": False}


def problems(tmp_path: Path, text: str, *flags: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(models_file(tmp_path, text), *flags)
    return caught.value.problems


def test_problems_of_all_models_are_reported_at_once(tmp_path: Path) -> None:
    text = """
small = "acme/small"

[coder]
modle = "acme/coder"
slots = "x"

[sql]
model = "/nowhere"
workerz = 2

[third]
model = "acme/third"
engine = "nope"
nats_url = "x"
"""
    *found, engine = problems(tmp_path, text)
    assert found == [
        "--models [small] is not a table of settings",
        "--models [coder]: model is required, a directory or a hub id",
        '--models [coder]: no setting "modle" of a model; did you mean "model"?',
        'Invalid value for --models [coder] slots: "x" is not a whole number',
        '--models [sql]: no setting "workerz" of a model; did you mean "workers"?',
        "Invalid value for --models [sql] model: there is no directory /nowhere",
        '--models [third]: no setting "nats_url" of a model',
    ]
    assert engine.startswith("Invalid value for --models [third] engine")


def test_file_is_for_models_with_different_names(tmp_path: Path) -> None:
    assert problems(tmp_path, "") == ["--models has no table of a model"]
    (of_flag,) = problems(tmp_path, MODELS, "--model=acme/other")
    assert of_flag.startswith("--models: --model is for one model")
    text = "[small]\nmodel = 'a'\n[\"sm/all\"]\nmodel = 'a'\n[sm_all]\nmodel = 'a'"
    (of_labels,) = problems(tmp_path, text)
    assert "models have nearly the same name: small, sm/all, sm_all" in of_labels
    text = "[{}]\nmodel = 'm'\nserved_model_name = 'x'\n"
    (of_names,) = problems(tmp_path, text.format("a") + text.format("b"))
    assert "models have nearly the same name: x, x" in of_names


def test_model_of_a_flag_precedes_the_models_of_a_variable(tmp_path: Path) -> None:
    file = models_file(tmp_path).removeprefix("--models=")
    made = plan("--model=acme/m", env={"TURNWIRE_MODELS": file})
    assert [(model.label, model.name) for model in made.models] == [("", "acme/m")]
