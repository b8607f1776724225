"""The routes of models: names with slashes, and lists that have not changed."""

import json

from schemas.control import ModelCard
from tests.kit.bodies import MODEL, responses
from tests.kit.frontend import FakeGateway, serving
from tests.kit.raw_http import answer_to, get

CARDS = [ModelCard("acme/one", aliases=["claude-one"]), ModelCard("two")]


async def test_slash_in_a_name_may_be_escaped() -> None:
    async with serving() as served:
        for spelled in ("acme/served-model", "acme%2Fserved-model", "acme%2fserved-model"):
            answer = await answer_to(served.port, get(f"/v1/models/{spelled}"))
            assert (answer.status, json.loads(answer.body)["id"]) == (200, MODEL), spelled


async def test_unchanged_list_is_not_sent_again() -> None:
    gateway = FakeGateway(cards=CARDS)
    etags = []
    async with serving(gateway) as served:
        for path in ("/v1/models", "/codex/models.json", "/v1/models?limit=1"):
            etag = (await served.get(path)).headers["etag"]
            again = await served.get(path, headers={"if-none-match": f'"other", {etag}'})
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
            etags.append(etag)
        assert etags[0] == etags[1] != etags[2], "pages have their own"
        whole = (await served.get("/v1/models?client_version=0.169.0")).json
        assert (await served.get("/codex/models.json")).json == {"models": whole["models"]}
        gateway.cards = CARDS[:1]
        changed = await served.get("/v1/models", headers={"if-none-match": etags[0]})
        assert changed.status == 200
        assert changed.headers["etag"] != etags[0]


async def test_answer_has_the_etag_of_the_catalogue() -> None:
    gateway = FakeGateway()
    async with serving(gateway) as served:
        etag = (await served.get("/codex/models.json")).headers["etag"]
        for stream in (True, False):
            answer = await served.post("/v1/responses", responses(stream=stream))
            assert (answer.status, answer.headers["x-models-etag"]) == (200, etag), stream
        assert "x-models-etag" not in (await served.ask()).headers
        gateway.cards = [*gateway.cards, *CARDS]
        answer = await served.post("/v1/responses", responses())
        changed = (await served.get("/codex/models.json")).headers["etag"]
        assert answer.headers["x-models-etag"] == changed != etag
