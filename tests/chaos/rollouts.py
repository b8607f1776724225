"""Rollouts of a trial: some of its streams are turns of them. Afterwards each of these turns is in
a sample, with all that the script has written, or is named as missing."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from tests.chaos.clients import Stream

COUNT = 3
EVERY = 4
"""Of this many streams one is of a rollout."""
STORED_S = 30.0
"""Until records are stored that the store could not take before."""


async def make_rollouts(http: aiohttp.ClientSession, url: str) -> list[str]:
    """Makes the rollouts of a trial; returns their ids."""
    ids = []
    for _ in range(COUNT):
        async with http.post(f"{url}/rollouts", json={}) as response:
            assert response.status == 200, await response.text()
            ids.append((await response.json())["id"])
    return ids


def rollout_of(ids: Sequence[str], number: int) -> str:
    """The rollout of the stream with this number; "": none."""
    return ids[number // EVERY % COUNT] if number % EVERY == EVERY - 1 else ""


async def judge_rollouts(
    url: str, ids: Iterable[str], streams: Sequence[Stream], tokenizer: Tokenizer
) -> list[str]:
    """Returns what is wrong with the samples of rollouts after a trial. `url`: of a frontend."""
    wrong = []
    decode = partial(tokenizer.decode, skip_special_tokens=False)
    async with aiohttp.ClientSession(url) as http:
        for id in ids:
            own = [stream for stream in streams if stream.rollout == id]
            try:
                samples, missing = await _read(http, id)
            except (aiohttp.ClientError, AssertionError) as error:
                wrong.append(f"rollout {id[:9]}: {error!r}")
                continue
            found = judge_samples(samples, missing, own, decode)
            wrong += [f"rollout {id[:9]}: {problem}" for problem in found]
    return wrong


async def _read(
    http: aiohttp.ClientSession, id: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The samples, and the missing turns with their reasons, once no turn runs."""
    until = time.monotonic() + STORED_S
    while True:
        async with http.get(f"/rollouts/{id}") as response:
            document = await response.json()
            assert response.status == 200, document
        missing = {turn["turn"]: turn["why"] for turn in document["missing"]}
        if "running" not in missing.values() or time.monotonic() > until:
            break
        await asyncio.sleep(0.5)
    # The last line is the rollout's.
    async with http.get(f"/rollouts/{id}/samples") as response:
        text = await response.text()
        assert response.status == 200, text
    lines = [json.loads(line) for line in text.splitlines()]
    missing = {turn["turn"]: turn["why"] for turn in lines[-1]["missing"]}
    return lines[:-1], missing


def judge_samples(
    samples: Sequence[dict[str, Any]],
    missing: Mapping[str, str],
    streams: Sequence[Stream],
    decode: Callable[[list[int]], str],
) -> list[str]:
    """Returns what is wrong with the samples of one rollout. Pure."""
    wrong = [f"{turn} still runs" for turn, why in missing.items() if why == "running"]
    outputs: dict[str, list[int]] = {}
    for sample in samples:
        decoded: set[int] = set()
        for span in sample["turns"]:
            if span["turn"] in outputs or span["turn"] in missing:
                wrong.append(f"{span['turn']} is there twice")
            outputs[span["turn"]] = sample["ids"][span["start"] : span["end"]]
            decoded |= {*range(span["start"], span["end"])}
        if [at for at, bit in enumerate(sample["loss_mask"]) if bit] != sorted(decoded):
            wrong.append(f"{sample['id']}: the mask is not the decoded tokens")
    for stream in streams:
        written = stream.wanted.script.written
        for turn in filter(None, stream.turns):
            if turn not in outputs:
                if turn not in missing:
                    wrong.append(f"{stream.tag}: {turn} is neither in a sample nor missing")
                continue
            ids = outputs[turn]
            if len(ids) != stream.wanted.tokens:
                wrong.append(f"{stream.tag}: {len(ids)} tokens, not {stream.wanted.tokens}")
            elif decode(ids[:-1]) != written:
                wrong.append(f"{stream.tag}: other tokens")
    return wrong
