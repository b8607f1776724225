"""Runs the API of docs/extending.md: an `Api` object from outside the tree, passed to the application
with the others."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry
from structlog import get_logger

from schemas.conversation import Message, Text
from services.frontend.app import APIS, Telemetry, make_app
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL
from tests.kit.frontend import FakeGateway

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
QUESTION = {"model": MODEL, "question": "well?"}


@pytest.fixture
def murmurs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the page's API."""
    section = PAGE.read_text().partition("## An HTTP API")[2]
    code = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert code is not None
    module = ModuleType("murmurs")
    monkeypatch.setitem(sys.modules, "murmurs", module)
    # Under another name: the application may have that of the page.
    source = code[1].replace("shout", "murmur").replace("Shout", "Murmur")
    exec(compile(source, str(PAGE), "exec"), vars(module))
    return module


async def test_another_api_serves_turns_errors_and_its_part_of_the_document(
    murmurs: ModuleType,
) -> None:
    gateway = FakeGateway()
    telemetry = Telemetry(CollectorRegistry(), get_logger())
    config = FrontendConfig(rollout_store_mb=0)
    app = make_app(config, gateway, telemetry, apis=(*APIS, murmurs.API))
    async with TestClient(TestServer(app.web)) as http:
        whole = await http.post("/v1/murmurs", json=QUESTION)
        assert await whole.json() == {"answer": "HELLO THERE"}
        stream = await http.post("/v1/murmurs", json={**QUESTION, "stream": True})
        assert "".join(re.findall(r'data: "(.*)"', await stream.text())) == "HELLO THERE"
        refused = await http.post("/v1/murmurs", json={"model": MODEL})
        error = (await refused.json())["error"]
        assert (refused.status, error["param"]) == (400, "question")
        missing = await http.get("/v1/murmurs/1")
        assert (missing.status, "error" in await missing.json()) == (404, True)
        document = await (await http.get("/openapi.json")).json()
    assert gateway.turns[0].conversation.messages == [Message("user", [Text("well?")])]
    answers = document["paths"]["/v1/murmurs"]["post"]["responses"]
    assert answers.keys() >= {"200", "400"}
    assert document["components"]["schemas"]["MurmursBody"]["required"] == ["model", "question"]
