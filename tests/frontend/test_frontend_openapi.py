"""The OpenAPI document describes what is served, and answers have its types."""

import msgspec
from prometheus_client import CollectorRegistry
from structlog import get_logger

from services.frontend.apis.shared.openapi import document
from services.frontend.app import APIS, Buckets, Telemetry, make_app
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL, Json, chat, completions, messages, responses
from tests.kit.events import Step, call, finish, reasoning, text
from tests.kit.every import Cases
from tests.kit.frontend import FakeGateway, serving
from tests.kit.rollouts import MemoryRollouts

OPERATIONS = [operation for api in APIS for operation in api.operations]
EVERYTHING = document("1.0", APIS)


def everything_said() -> list[Step]:
    calling = call(2, "look", '{"at": 1}', call_id="toolu_1")
    return [[*reasoning(0, "so"), *text(1, "well"), *calling, finish(3)]]


def test_document_describes_every_route_and_no_other() -> None:
    telemetry = Telemetry(CollectorRegistry(), get_logger())
    app = make_app(
        FrontendConfig(), FakeGateway(), telemetry, Buckets(rollouts=MemoryRollouts().store)
    )
    described = {(operation.method, operation.path) for operation in OPERATIONS}
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in app.web.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert served == described
    assert len(described) == len(OPERATIONS)


async def test_document_is_public_and_has_the_enabled_apis() -> None:
    async with serving(config=FrontendConfig(enable_anthropic_api=False)) as served:
        result = (await served.get("/openapi.json")).json
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            assert (await served.post(path, messages())).status == 404, path
        assert (await served.get("/v1/models")).status == 200
    assert result["openapi"] == "3.1.0"
    assert not {"/v1/messages", "/v1/messages/count_tokens"} & {*result["paths"]}
    assert set(result["paths"]["/v1/responses"]) == {"get", "post"}


TEXTS = {"model": MODEL, "prompt": "x y"}
REQUESTS: list[tuple[str, str, Json | None]] = [
    ("POST", "/v1/messages", messages()),
    ("POST", "/v1/messages/count_tokens", chat()),
    ("POST", "/v1/chat/completions", chat()),
    ("POST", "/v1/completions", completions()),
    ("POST", "/v1/responses", responses()),
    ("POST", "/v1/responses/compact", responses()),
    ("POST", "/v1/responses/input_tokens", responses()),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/{id}", None),
    ("GET", "/codex/models.json", None),
    ("GET", "/v1/usage", None),
    ("POST", "/v1/tokenize", TEXTS),
    ("POST", "/v1/detokenize", {"model": MODEL, "tokens": [1]}),
    ("GET", "/health", None),
]


async def test_answers_have_their_types(cases: Cases) -> None:
    kinds = {(one.method.upper(), one.path): one.answer for one in OPERATIONS}
    async with serving(FakeGateway(everything_said)) as served:
        for method, path, body in REQUESTS:
            with cases.case(path=path):
                reply = await served.send(method, path.replace("{id}", MODEL), json=body)
                assert reply.status == 200
                msgspec.json.decode(reply.body, type=kinds[method, path])


async def test_compaction_ignores_the_requests_sampling() -> None:
    """Found by schemathesis on a running stack: `generate: false` left no summary, which was a
    500."""
    ask = responses(generate=False, stop=["a"], stop_token_ids=[1])
    async with serving(FakeGateway(everything_said)) as served:
        assert (await served.post("/v1/responses/compact", ask)).status == 200
    sampling = served.gateway.turns[0].conversation.sampling
    assert (sampling.max_tokens, sampling.stop, sampling.stop_token_ids) == (None, [], [])
