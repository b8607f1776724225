"""The requests are the same on every machine; those of a variant share a prefix."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest

from bench import prefixes
from bench.apis import APIS
from bench.prompts import KINDS, Kind, Size, make_body

API = APIS["messages"]


def common(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The share of `one` that both begin with."""
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return same / len(one)


def bodies(size: Size, kind: Kind, seed: int = 0) -> list[bytes]:
    make = make_body(API, "m", size=size, kind=kind, play="text n=16", seed=seed)
    return [make(0), make(1)]


def test_requests_are_the_same_bytes_on_every_machine() -> None:
    every = b"".join(b"".join(bodies("large", kind)) for kind in KINDS)
    digest = "cd63bffdfdb2f7a8326517b0143671a7d47715ee95bd9385d616e4dad2fb3965"
    assert hashlib.sha256(every).hexdigest() == digest


VARIANTS = prefixes.variants("m", 2000, 7)


def in_order(body: prefixes.Body) -> str:
    return json.dumps([body["system"], body["messages"]])


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("header stable", 0.9),
        ("header varying", 0.0),
        ("thinking kept", 0.95),
        ("thinking mutated", 0.7),
    ],
)
def test_requests_of_a_variant_share_a_prefix(name: str, share: float) -> None:
    one, other = in_order(VARIANTS[name](1)), in_order(VARIANTS[name](2))
    assert one != other
    assert share <= common(one, other) < share + 0.1
    others = [in_order(variant(1)) for key, variant in VARIANTS.items() if key != name]
    assert all(common(one, variant) < 0.05 for variant in others)
