"""Settings of the bus, and those that all services, or all stages of a model, share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from services.runtime.config.base import MIB, Config, Port, Positive, Seconds, also


@dataclass(frozen=True, kw_only=True)
class BusConfig(Config):
    """The connection to the bus, heartbeats and flow control."""

    nats_url: str = "nats://127.0.0.1:4222"
    """URL of the NATS server; several servers of a cluster are separated by commas. Commands that
    watch the bus use that of the newest `turnwire up` on this machine, if one runs."""
    nats_user: str | None = None
    """User name at the NATS server."""
    nats_password_file: str | None = None
    """File with the user's password."""
    nats_creds_file: str | None = None
    """NATS credentials file (JWT and seed), instead of user and password."""
    nats_ca_file: str | None = None
    """PEM file of the certificate authorities that may sign the NATS server's certificate; default:
    those of the system."""
    nats_cert_file: str | None = None
    """PEM file with this process's certificate, for a server that requires one."""
    nats_key_file: str | None = None
    """PEM file with the certificate's private key; default: `nats_cert_file` contains it."""
    heartbeat_key_file: str | None = None
    """File with the key that authenticates heartbeats, the same for all processes; default:
    heartbeats are not authenticated."""
    connect_timeout_s: Positive = 30.0
    """Longest time for the first connection; then the process exits."""
    beat_interval_s: Positive = 1.0
    """Time between two heartbeats."""
    dead_after_s: Positive = 3.5
    """Time without a heartbeat after which a process counts as dead and its turns move to another
    one."""
    recovery_s: Seconds = 90.0
    """How long turns wait for a successor of a lost process; the same for all processes
    (docs/reliability.md)."""
    window_bytes: Annotated[int, Parameter(validator=Number(gte=4096))] = MIB
    """Flow control: most bytes that another process may send to this one before this one
    acknowledges them."""

    def __post_init__(self) -> None:
        """Rejects combinations that cannot work."""
        if self.dead_after_s < 2 * self.beat_interval_s:
            raise ValueError(
                "dead_after_s must be at least twice beat_interval_s: one heartbeat may be late"
            )
        if self.nats_creds_file and (self.nats_user or self.nats_password_file):
            raise ValueError("nats_creds_file excludes nats_user and nats_password_file")
        if self.nats_key_file and not self.nats_cert_file:
            raise ValueError("nats_key_file needs a nats_cert_file")


@dataclass(frozen=True, kw_only=True)
class ServiceConfig(Config):
    """Settings of all four services."""

    id: str | None = None
    """Name of this process on the bus, to which a random part is added; default: the host's
    name."""
    bus: BusConfig = field(default_factory=BusConfig)
    log_format: Literal["auto", "json", "console"] = "auto"
    """`json`: one JSON object a line; `console`: text for people; `auto`: text on a terminal, else
    JSON."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level to log."""
    drain_s: Seconds = 30.0
    """Longest time for running turns to end after SIGTERM."""
    tracing: bool = False
    """Record OpenTelemetry traces and export them by OTLP (docs/tracing.md); needs the extra
    `otel`."""
    trace_ratio: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] | None = None
    """Share of the requests without a trace of their client that is traced; default:
    `OTEL_TRACES_SAMPLER`, else all of them."""
    otlp_endpoint: str | None = None
    """URL of the receiver of traces; default: `OTEL_EXPORTER_OTLP_ENDPOINT`, else port 4318 of this
    machine."""


@dataclass(frozen=True, kw_only=True)
class StageConfig(ServiceConfig):
    """Settings of preprocessor, worker and parser: the model, and a port for metrics and health."""

    model: Annotated[str, also("--model-path")]
    """Directory or hub id of the model: tokenizer, chat template and, for engines that need them,
    weights; default: a demo model in `turnwire up`, none elsewhere."""
    served_model_name: Annotated[str | None, also("--model-name")] = None
    """Name of the model for clients, or several names separated by commas; default: the hub id or
    the directory's name."""
    trust_remote_code: bool = False
    """Run Python code from the model directory."""
    metrics_host: str = "127.0.0.1"
    """Address for /metrics, /live and /ready."""
    metrics_port: Port | None = None
    """Port for /metrics, /live and /ready; default: they are not served."""

    @property
    def model_name(self) -> str:
        """The name on the bus and for clients: the first served name, else the hub id or the
        directory's name."""
        if self._names:
            return self._names[0]
        path = Path(self.model)
        if path.is_dir() or self.model.startswith(("/", "./", "../", "~")):
            return path.expanduser().resolve().name
        return self.model

    @property
    def other_names(self) -> list[str]:
        """The served names after the first one."""
        return self._names[1:]

    @property
    def _names(self) -> list[str]:
        names = (self.served_model_name or "").split(",")
        return [name.strip() for name in names if name.strip()]
