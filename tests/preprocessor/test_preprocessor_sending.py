"""Requests in the encodings that workers read."""

import msgspec
from msgspec import Raw

from schemas.control import Heartbeat, ModelCard
from schemas.conversation import Sampling
from schemas.requests import GenerateRequest, decode_generate
from schemas.token_ids import pack_ids
from services.preprocessor.routing.sending import encoded_for

REQUEST = GenerateRequest("t", 1, "m", pack_ids(range(99)), "p", "f", Sampling(), [], Raw(b"null"))


def worker(*, raw: bool) -> Heartbeat:
    cards = [ModelCard("other", raw_prompts=not raw), ModelCard("m", raw_prompts=raw)]
    return Heartbeat("worker", "w", models=cards)


def test_worker_of_an_older_release_gets_json() -> None:
    for gets_json in (worker(raw=False), None):
        data = encoded_for(gets_json, REQUEST)
        assert msgspec.json.decode(data, type=GenerateRequest) == REQUEST


def test_prompt_follows_the_json_as_bytes() -> None:
    data = encoded_for(worker(raw=True), REQUEST)
    assert data.endswith(REQUEST.prompt)
    assert decode_generate(data) == REQUEST
