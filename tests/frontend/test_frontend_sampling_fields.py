"""Tests the table of sampling fields: every API accepts each field, and a new field needs one line
in it and one in `Sampling`."""

import json
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from schemas.conversation import Sampling
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.shared import sampling_fields
from services.frontend.apis.shared.sampling_fields import SamplingFields, sampling_of

HI = [{"role": "user", "content": "hi"}]
APIS: list[tuple[Any, dict[str, Any]]] = [
    (Messages(), {"messages": HI, "max_tokens": 9}),
    (Chat(), {"messages": HI}),
    (Completions(), {"prompt": "hi"}),
    (Responses(), {"input": "hi"}),
]
VALUES: dict[type, Any] = {float: 0.5, int: 7, bool: True}


@pytest.mark.parametrize(("dialect", "body"), APIS, ids=[dialect.name for dialect, _ in APIS])
@pytest.mark.parametrize(
    "field", msgspec.structs.fields(SamplingFields), ids=lambda field: field.name
)
def test_every_api_accepts_every_sampling_field(
    dialect: Any, body: dict[str, Any], field: msgspec.structs.FieldInfo
) -> None:
    kinds = get_args(get_type_hints(SamplingFields)[field.name])
    value = next(VALUES[kind] for kind in VALUES if kind in kinds)
    ask = dialect.parse(json.dumps({"model": "m", **body, field.name: value}).encode(), {})
    assert getattr(ask.conversations[0].sampling, field.name) == value


class Warmer(Sampling, frozen=True, omit_defaults=True):
    warmth: float | None = None


class WarmerFields(SamplingFields, kw_only=True):
    warmth: float | None = None


class WarmerBody(WarmerFields):
    stop_words: list[str] | None = None


def test_new_sampling_field_needs_no_other_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_fields, "Sampling", Warmer)
    monkeypatch.setattr(sampling_fields, "SamplingFields", WarmerFields)
    body = msgspec.json.decode(
        b'{"warmth": 0.25, "top_k": 3, "stop_words": ["a"]}', type=WarmerBody
    )
    assert sampling_of(body, stop=body.stop_words) == Warmer(warmth=0.25, top_k=3, stop=["a"])


def test_absent_field_has_the_default_of_sampling() -> None:
    assert sampling_of(SamplingFields(), max_tokens=None, stop=None) == Sampling()
