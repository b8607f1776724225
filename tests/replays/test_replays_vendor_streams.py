"""The frontend's streams have the events and fields of the vendors' own ones, but for the declared
differences."""

from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replays.vendor_streams import (
    Difference,
    Recording,
    chunk_kind,
    declared,
    differences,
    joined,
    recordings,
    replay_of,
    request,
    shape,
)
from turnwire_tools.clients.answer import APIS
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import SseParser
from turnwire_tools.replay.gateway import ReplayGateway, serving

RECORDINGS = recordings()
DECLARED = declared()


async def differences_of(recording: Recording) -> list[Difference]:
    """The differences of the recording from the frontend's stream where the model says the same
    blocks."""
    async with (
        serving(ReplayGateway(replay_of(recording))) as url,
        aiohttp.ClientSession() as http,
        http.post(url + CLIENTS[recording.api].path, json=request(recording)) as answer,
    ):
        assert answer.status == 200, await answer.text()
        events = SseParser().feed(await answer.read())
    ours: list[tuple[str, Any]] = [
        (chunk_kind(data) if recording.api == "chat" else data["type"], shape(data))
        for _, data in events
        if data
    ]
    return list(differences(joined(recording.events), joined(ours)))


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.source.rpartition("/")[2])
async def test_stream_differs_from_the_vendors_only_as_declared(recording: Recording) -> None:
    found = await differences_of(recording)
    assert [
        one for one in found if not any(entry.covers(recording.api, one) for entry in DECLARED)
    ] == []


async def test_every_declared_difference_is_needed() -> None:
    found = [
        (recording.api, one) for recording in RECORDINGS for one in await differences_of(recording)
    ]
    assert [entry for entry in DECLARED if not any(entry.covers(*one) for one in found)] == []


def test_each_api_has_recordings_of_several_services_and_blocks() -> None:
    assert len(RECORDINGS) >= 40
    for api in APIS:
        blocks = [
            block for recording in RECORDINGS if recording.api == api for block in recording.blocks
        ]
        assert {"text", "call", "reasoning"} <= set(blocks)


@given(st.sampled_from(RECORDINGS), st.data())
def test_missing_event_or_field_is_a_difference(recording: Recording, data: st.DataObject) -> None:
    whole = joined(recording.events)
    assert list(differences(whole, whole)) == []
    at = data.draw(st.integers(0, len(whole) - 1))
    kind, fields = whole[at]
    assert Difference(kind, "", "vendor") in differences(whole, whole[:at] + whole[at + 1 :])
    name = data.draw(
        st.sampled_from(
            sorted(name for name, type_ in fields.items() if type_ not in ("null", "array"))
        )
    )
    less = {path: value for path, value in fields.items() if path != name}
    assert Difference(kind, name, "vendor") in differences(
        whole, [*whole[:at], (kind, less), *whole[at + 1 :]]
    )
