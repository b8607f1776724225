"""What the trials of a server show: fields that it ignores or refuses are features that are missing."""

import random
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import EngineFailed
from tests.kit.engines import request, run
from tests.worker.fake_vllm_server import fake_vllm_server
from tests.worker.remote.vllm.serving import check_lacking, start, started


@pytest.mark.parametrize(
    ("ignored", "lacking"),
    [
        ("min_tokens", {"min_tokens": "ignores"}),
        ("logit_bias", {"logit_bias": "ignores"}),
        ("logprobs", dict.fromkeys(("logprobs", "top_logprobs"), "probabilities are missing")),
    ],
)
async def test_ignored_field_is_a_feature_that_is_missing(
    model: Path, ignored: str, lacking: dict[str, str]
) -> None:
    async with fake_vllm_server() as server:
        server.ignored.add(ignored)
        check_lacking(await start(server.url, model), lacking)


async def test_ignored_seed_is_found_where_tokens_differ(model: Path) -> None:
    async with fake_vllm_server() as server:
        check_lacking(await start(server.url, model), {})

        def sample(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
            if "seed" in server.requests[-1]["sampling_params"]:
                for choice in events[0]["choices"]:
                    choice["token_ids"] = [random.randrange(8, 500)]
            return events

        server.lie = sample
        check_lacking(await start(server.url, model), {"seed": "ignores"})


async def test_refused_field_is_missing_with_the_reason_of_the_server(model: Path) -> None:
    async with fake_vllm_server(scheduling_policy="fcfs") as server:
        info = await start(server.url, model)
        check_lacking(
            info, {"priority": "is not enabled. (its flag: `--scheduling-policy priority`)"}
        )
        async with started(server, model) as engine:
            assert await run(engine, request(priority=3.0)), "a hint"


async def test_busy_server_lacks_nothing_it_is_not_started(model: Path) -> None:
    """Without a salt, tenants would share blocks until the next start."""
    async with fake_vllm_server() as server:
        server.busy_for = "cache_salt"
        with pytest.raises(EngineFailed, match=r"trial of salt failed: .* status 503"):
            await start(server.url, model)


async def test_feature_at_which_the_server_fails_is_missing(model: Path) -> None:
    """As guided decoding in vLLM does with a tokenizer that its library cannot read."""
    async with fake_vllm_server() as server:
        server.fails_at = "structured_outputs"
        info = await start(server.url, model)
        reason = "Internal server error"
        check_lacking(info, {"guided": reason, "grammar": reason})


async def test_salt_that_cannot_be_verified_is_missing(model: Path) -> None:
    async with fake_vllm_server(reports_cached=False) as server:
        info = await start(server.url, model)
        check_lacking(info, {"salt": "--enable-prompt-tokens-details"})


async def test_server_that_ignores_stop_ids_cannot_serve(model: Path) -> None:
    async with fake_vllm_server() as server:
        server.ignored.add("stop_token_ids")
        with pytest.raises(EngineFailed, match="goes on after a stop token"):
            await start(server.url, model)
