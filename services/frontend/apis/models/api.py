"""The served models: answers as types, and operations."""

from typing import Any, Literal

from msgspec import Struct

from services.frontend.apis.base import Operation, Query
from services.frontend.apis.common.shared_errors import SHARED
from services.frontend.apis.models.routes import CODEX_PATH, ModelRoutes
from services.frontend.http.mount import Api, Mount


class Model(Struct):
    """A model under one of its names, with the fields of both families of APIs."""

    id: str
    type: Literal["model"]
    object: Literal["model"]
    display_name: str
    created: int
    created_at: str
    owned_by: str
    root: str
    lifecycle: Literal["active", "deprecated", "retired"]
    max_input_tokens: int | None
    max_tokens: int | None
    max_model_len: int | None
    capabilities: dict[str, Any]


class Page(Struct):
    """Every model under each of its names; `models` is Codex' catalogue of them."""

    object: Literal["list"]
    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None
    models: list[dict[str, Any]]


class Catalogue(Struct):
    """Codex' catalogue, for `model_catalog_url`."""

    models: list[dict[str, Any]]


_PAGING = (
    Query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most entries to return; default: all."),
    Query("after_id", {"type": "string"}, "Return the entries that follow this one."),
    Query("before_id", {"type": "string"}, "Return the entries that precede this one."),
    Query("lifecycle", {"enum": ["active", "deprecated", "retired"]}, "Only models in this state."),
)


def _mount(mount: Mount) -> None:
    routes = ModelRoutes.of(mount.config, mount.gateway)
    mount.app.router.add_get("/v1/models", routes.list)
    mount.app.router.add_get("/v1/models/{id:.+}", routes.retrieve)
    mount.app.router.add_get(CODEX_PATH, routes.codex)
    mount.app.on_response_prepare.append(routes.add_etag)


API = Api(
    name="Models",
    title="Models",
    errors=SHARED,
    operations=(
        Operation(method="get", path="/v1/models", summary="List the models", answer=Page, query=_PAGING, cached=True),
        Operation(
            method="get",
            path="/v1/models/{id}",
            summary="Describe a model",
            id="A model's name or alias; a slash in it may be escaped or not.",
            answer=Model,
            cached=True,
        ),
        Operation(
            method="get", path=CODEX_PATH, summary="The models as Codex' catalogue", answer=Catalogue, cached=True
        ),
    ),
    mount=_mount,
)
