"""The frontend's streams have the events and fields of the vendors' own ones, but for the declared
differences."""

import itertools
from typing import Any

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.every import Cases
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


async def test_streams_differ_from_the_vendors_only_as_declared_and_each_entry_is_needed(
    cases: Cases,
) -> None:
    needed = set()
    for recording in RECORDINGS:
        with cases.case(recording=recording.source):
            undeclared = []
            for one in await differences_of(recording):
                entries = [
                    at for at, entry in enumerate(DECLARED) if entry.covers(recording.api, one)
                ]
                needed |= {*entries}
                if not entries:
                    undeclared.append(one)
            assert undeclared == []
    assert [entry for at, entry in enumerate(DECLARED) if at not in needed] == []


def test_each_api_has_recordings_of_several_services_and_blocks() -> None:
    assert len(RECORDINGS) >= 40
    for api in APIS:
        blocks = [recording.blocks for recording in RECORDINGS if recording.api == api]
        assert {"text", "call", "reasoning"} <= {*itertools.chain(*blocks)}


@given(st.sampled_from(RECORDINGS), st.data())
def test_missing_event_or_field_is_a_difference(recording: Recording, data: st.DataObject) -> None:
    whole = joined(recording.events)
    assert list(differences(whole, whole)) == []
    at = data.draw(st.integers(0, len(whole) - 1))
    kind, fields = whole[at]
    assert Difference(kind, "", "vendor") in differences(whole, whole[:at] + whole[at + 1 :])
    present = sorted(name for name, type_ in fields.items() if type_ not in ("null", "array"))
    name = data.draw(st.sampled_from(present))
    less = {path: value for path, value in fields.items() if path != name}
    without = [*whole[:at], (kind, less), *whole[at + 1 :]]
    assert Difference(kind, name, "vendor") in differences(whole, without)
