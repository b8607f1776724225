"""Lists the served models: GET /v1/models, /v1/models/{id} and /codex/models.json."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from aiohttp import web
from cachetools import LRUCache
from msgspec import Struct

from services.frontend.apis.models.codex_profile import (
    Profile,
    assign_profiles,
    catalogue,
    read_profiles,
)
from services.frontend.apis.models.documents import NamedModel, entry, listing, names
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, Query
from services.frontend.apis.shared.errors import SHARED
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.frontend.turns.admission import Admission
from services.runtime.config.frontend import FrontendConfig

MAX_ETAGS = 256
CODEX_PATH = "/codex/models.json"
"""Codex' catalogue without the list, for `model_catalog_url` or `model_catalog_json`."""
MODELS_ETAG = "x-models-etag"
"""A header on answers of the Responses API: Codex reads its catalogue again when this changes."""

_PAGED = frozenset({"limit", "after_id", "before_id", "lifecycle", "lifecycle[]"})


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
    Query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": 1000},
        "Most entries to return; default: all.",
    ),
    Query("after_id", {"type": "string"}, "Return the entries that follow this one."),
    Query("before_id", {"type": "string"}, "Return the entries that precede this one."),
    Query("lifecycle", {"enum": ["active", "deprecated", "retired"]}, "Only models in this state."),
)


class ModelRoutes:
    """Handlers over the served models that the caller may use.

    Raises OSError or ValueError, naming the file, for profiles of Codex that cannot be used.
    """

    def __init__(self, config: FrontendConfig, admission: Admission) -> None:
        self._admission = admission
        self._hosted = config.served_tools
        self._slugs = config.codex_profiles
        """Slugs of Codex' own entries by the names that use them."""
        self._etags: LRUCache[tuple[str, ...], tuple[Sequence[NamedModel], str]] = LRUCache(
            MAX_ETAGS
        )
        path = config.codex_models_file
        try:
            self._profiles = read_profiles(path, config.codex_profiles)
            """Codex' own entries by slug."""
        except ValueError as error:
            raise ValueError(f"{path or 'codex_profiles'}: {error}") from error

    async def list(self, http: web.Request) -> web.StreamResponse:
        """`GET /v1/models`: every model under each of its names."""
        query = http.query
        lifecycles = [*query.getall("lifecycle[]", []), *query.getall("lifecycle", [])]
        models = self._models_of(http)
        document = listing(models, query, lifecycles, self._profiles_of(models), self._hosted)
        if _PAGED & query.keys():
            return _answer(http, document)
        return _answer(http, document, self._etag(models))

    async def retrieve(self, http: web.Request) -> web.StreamResponse:
        """`GET /v1/models/{id}`: one model by name or alias; a slash in the name may be escaped or
        not. Raises NotFound, Forbidden."""
        name = http.match_info["id"]
        card = self._admission.resolve(name, http[REQUEST_CONTEXT].caller)
        return _answer(http, entry(card, name, self._hosted))

    async def codex(self, http: web.Request) -> web.StreamResponse:
        """`GET /codex/models.json`: Codex' catalogue of the same models."""
        models = self._models_of(http)
        return _answer(http, catalogue(models, self._profiles_of(models)), self._etag(models))

    async def add_etag(self, http: web.Request, response: web.StreamResponse) -> None:
        """Signal handler, right before the first byte: sends Codex the ETag of its catalogue."""
        if http.path == "/v1/responses" and response.status == 200:
            etag = self._etag(self._models_of(http))
            response.headers[MODELS_ETAG] = f'"{etag}"'

    def _models_of(self, http: web.Request) -> Sequence[NamedModel]:
        return names(self._admission.models(http[REQUEST_CONTEXT].caller))

    def _profiles_of(self, models: Sequence[NamedModel]) -> dict[str, Profile]:
        return assign_profiles(self._profiles, self._slugs, [name for _, name in models])

    def _etag(self, models: Sequence[NamedModel]) -> str:
        """The ETag of the whole list and of its catalogue. Every answer of Responses has it, and it
        takes 0.2 ms for one model and 5 ms for 32: computed again only when a model has
        changed."""
        key = tuple(name for _, name in models)
        hashed, etag = self._etags.get(key, ((), ""))
        if not etag or hashed != models:
            full_list = listing(models, {}, profiles=self._profiles_of(models), hosted=self._hosted)
            etag = _etag_of(msgspec.json.encode(full_list))
            self._etags[key] = (models, etag)
        return etag


def _answer(http: web.Request, document: Mapping[str, Any], etag: str = "") -> web.Response:
    """The document, or 304 if the client has it. `etag`: by default the document's."""
    body = msgspec.json.encode(document)
    etag = etag or _etag_of(body)
    headers = {"etag": f'"{etag}"', "cache-control": "private, no-cache"}
    if any(tag.value in ("*", etag) for tag in http.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type="application/json", headers=headers)


def _etag_of(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=12).hexdigest()


def _add_routes(setup: ApiSetup) -> None:
    routes = ModelRoutes(setup.config, setup.turns.admission)
    setup.app.router.add_get("/v1/models", routes.list)
    setup.app.router.add_get("/v1/models/{id:.+}", routes.retrieve)
    setup.app.router.add_get(CODEX_PATH, routes.codex)
    setup.app.on_response_prepare.append(routes.add_etag)


API = Api(
    name="Models",
    title="Models",
    errors=SHARED,
    operations=(
        Operation(
            "/v1/models", "List the models", method="get", answer=Page, query=_PAGING, cached=True
        ),
        Operation(
            "/v1/models/{id}",
            "Describe a model",
            method="get",
            id="A model's name or alias; a slash in it may be escaped or not.",
            answer=Model,
            cached=True,
        ),
        Operation(
            CODEX_PATH,
            "The models as Codex' catalogue",
            method="get",
            answer=Catalogue,
            cached=True,
        ),
    ),
    add_routes=_add_routes,
)
