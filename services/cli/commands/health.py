"""`turnwire health STAGE`: requests /live or /ready from a process on this machine, as a
container's health check.

It imports only the standard library and the configuration, because it runs every few seconds in
every container.
"""

import sys

from schemas.control import Stage
from services.cli.common import get, reachable_host
from services.cli.registry import Command
from services.runtime.config.base import Positive
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import Sources
from services.runtime.config.service import StageConfig
from services.runtime.config.tables import STAGES


def check(
    sources: Sources,
    stage: Stage = "frontend",
    /,
    *,
    ready: bool = False,
    timeout_s: Positive = 3.0,
) -> int:
    """Requests /live or /ready from a process on this machine. Exits with status 1 unless the
    answer is 200.

    Args:
        stage: The stage of the process.
        ready: Request /ready instead of /live.
        timeout_s: Longest time to wait for the answer.
    """
    config = sources.load(STAGES[stage]).config
    scheme = "http"
    if isinstance(config, FrontendConfig):
        host, port = config.host, config.port
        scheme = "https" if config.tls_cert_file else "http"
    else:
        assert isinstance(config, StageConfig)
        if config.metrics_port is None:
            print(
                f"turnwire health: no port for the request: give the {stage} a --metrics-port",
                file=sys.stderr,
            )
            return 2
        host, port = config.metrics_host, config.metrics_port
    path = "ready" if ready else "live"
    url = f"{scheme}://{reachable_host(host)}:{port}/{path}"
    try:
        status, body = get(url, timeout_s)
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    if status == 200:
        return 0
    print(f"{url}: {status} {body[:500].decode(errors='replace')}", file=sys.stderr)
    return 1


COMMAND = Command(
    check,
    tuple(STAGES.values()),
    essential=("host", "port", "tls_cert_file", "metrics_host", "metrics_port"),
)
