"""The configurations of the stages."""

from services.runtime.config.stages import WorkerConfig


def test_several_served_names_are_split() -> None:
    assert WorkerConfig(model="/models/qwen").model_name == "qwen"
    config = WorkerConfig(model="m", served_model_name="acme/served, gpt-5.5,,fast")
    assert (config.model_name, config.other_names) == ("acme/served", ["gpt-5.5", "fast"])
