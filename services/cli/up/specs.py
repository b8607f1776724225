"""Makes the command lines of the processes that `turnwire up` starts."""

import sys
from collections.abc import Iterator, Mapping, Sequence

from services.cli.up.plan import ModelPlan, UpPlan
from services.cli.up.supervisor import ChildSpec

INSPECTOR = "inspector"
START_ORDER = ("preprocessor", "worker", "frontend", "parser")
"""The slowest to start first."""


def inner_processes(plan: UpPlan) -> list[str]:
    """The names of the processes that are not frontends."""
    stages = [stage for stage in START_ORDER if stage != "frontend"]
    return [
        name for stage in stages for model in plan.models for name in model.process_names(stage)
    ]


def inspector_spec(plan: UpPlan, bus_url: str, port: int) -> ChildSpec:
    """The spec of the process that serves the inspector."""
    models = [f"{model.name}={model.worker.model}" for model in plan.models]
    if len(models) == 1:
        models = [plan.worker.model]
    flags = [*plan.bus_flags, f"--nats-url={bus_url}", *(f"--model={model}" for model in models)]
    command = [sys.executable, "-m", "services.cli.main", "inspect", *flags, f"--port={port}"]
    return ChildSpec(INSPECTOR, command)


def make_specs(
    plan: UpPlan,
    nats_url: str | None,
    ports: Sequence[int],
    env: Mapping[str, str],
    metrics_ports: Sequence[int] = (),
) -> list[ChildSpec]:
    """The specs of all service processes, in the order of their start. `metrics_ports`: those of
    the stages after the frontend; without them, these serve no metrics."""
    shared = [f"--nats-url={nats_url}"] if nats_url else []
    quiet = _quiet_variables(env)
    metrics = dict(zip(inner_processes(plan), metrics_ports, strict=False))

    specs: list[ChildSpec] = []
    for stage in START_ORDER:
        if stage == "frontend":
            for number, port in enumerate(ports, 1):
                flags = [*plan.frontend_flags, *shared, f"--port={port}"]
                specs.append(_spec(stage, f"{stage}-{number}", flags, quiet))
        else:
            for model in plan.models:
                specs += _model_specs(stage, model, shared, metrics, quiet)
    return specs


def _model_specs(
    stage: str,
    model: ModelPlan,
    shared: Sequence[str],
    metrics: Mapping[str, int],
    quiet: Mapping[str, str],
) -> Iterator[ChildSpec]:
    """Yields the specs of a model's processes of a stage. `shared`: flags of all processes;
    `metrics`: their ports by name; empty: they serve none."""
    urls = model.worker.engine_urls
    if model.worker.engine in ("trtllm", "vllm"):
        quiet = {}
    for number, name in enumerate(model.process_names(stage)):
        flags = [*model.flags[stage], *shared]
        if stage == "worker" and urls:
            flags.append(f"--engine-url={urls[number % len(urls)]}")
        if metrics:
            flags += ["--metrics-host=127.0.0.1", f"--metrics-port={metrics[name]}"]
        yield _spec(stage, name, flags, quiet, model.label)


def _spec(
    stage: str, name: str, flags: Sequence[str], variables: Mapping[str, str], group: str = ""
) -> ChildSpec:
    command = [sys.executable, "-m", "services.cli.main", "serve", stage, *flags, f"--id={name}"]
    # The hub's library shows the progress of downloads without a terminal, too.
    return ChildSpec(name, command, {**variables, "TQDM_POSITION": "-1"}, group)


def _quiet_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to `env`. They stop numeric libraries from starting a thread for each core
    in every process, and transformers from printing in each that torch is missing."""
    names = (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS",
    )
    return {name: "1" for name in names if name not in env}
