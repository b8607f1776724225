"""`turnwire health STAGE`: asks a process on this machine for /live or /ready. What a container's health check runs.

Nothing but the standard library and the configuration: it starts every few seconds in every container.
"""

import argparse
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

from services.runtime.config import STAGES, FrontendConfig, StageConfig
from services.runtime.config_flags import add_config_flag, add_flags, load_or_exit, parse_arguments

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}


def main(argv: Sequence[str]) -> int:
    """Status 0: it answered 200; 1: it did not, and stderr says why."""
    parser = argparse.ArgumentParser(prog="turnwire health", allow_abbrev=False, description=__doc__)
    parser.add_argument("stage", nargs="?", choices=list(STAGES), default="frontend")
    parser.add_argument("--ready", action="store_true", help="ask for /ready instead of /live")
    parser.add_argument("--timeout-s", type=float, default=3.0)
    add_config_flag(parser)
    add_flags(parser, *STAGES.values())
    arguments = parse_arguments(parser, argv)
    config = load_or_exit(STAGES[arguments.stage], "turnwire health", arguments, os.environ).config
    scheme = "http"
    if isinstance(config, FrontendConfig):
        host, port = config.host, config.port
        scheme = "https" if config.tls_cert_file else "http"
    else:
        assert isinstance(config, StageConfig)
        if config.metrics_port is None:
            print(f"turnwire health: no port to ask: give the {arguments.stage} a --metrics-port", file=sys.stderr)
            return 2
        host, port = config.metrics_host, config.metrics_port
    url = f"{scheme}://{reachable(host)}:{port}/{'ready' if arguments.ready else 'live'}"
    try:
        # A process on this machine, asked under an address that its certificate does not speak of.
        context = ssl._create_unverified_context() if scheme == "https" else None
        with urllib.request.urlopen(url, timeout=arguments.timeout_s, context=context):
            return 0
    except urllib.error.HTTPError as error:
        print(f"{url}: {error.code} {error.read(500).decode(errors='replace')}", file=sys.stderr)
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
    return 1


def reachable(host: str) -> str:
    """The address under which a listener on `host` is reached from this machine, as it stands in a URL."""
    host = _EVERYWHERE.get(host, host)
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
