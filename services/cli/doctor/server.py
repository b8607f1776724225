"""Checks a running server over HTTP: whether it answers, with which models, and whether the key is
right."""

from services.cli.connect.server import ServerError, read_models
from services.cli.doctor.report import Finding


def check_server(url: str, key: str | None) -> Finding:
    """Checks the server at this address."""
    try:
        server = read_models(url, key)
    except ServerError as error:
        return Finding("fail", "server", str(error))
    models = ", ".join(
        f"{model.id} ({model.max_model_len})" if model.max_model_len else model.id
        for model in server.models
    )
    if not models:
        return Finding("warn", "server", f"{server.url} serves no model")
    return Finding("ok", "server", f"{server.url} serves {models}")
