"""Events, outputs and latencies from bytes with times."""

import pytest

from bench.apis import APIS
from bench.exchange import Exchange
from bench.stub import closing, delta, opening

API = APIS["messages"]
MS = 1_000_000


def exchange(*reads: tuple[int, bytes], due: int = 0, keep: bool = False) -> Exchange:
    made = Exchange(due, keep=keep)
    made.status = 200
    for time_ms, data in reads:
        made.body(time_ms * MS, data, API.output)
    return made


def test_latencies_and_counts() -> None:
    one = exchange(
        (5, opening()), (7, delta("a")), (17, delta("b") + delta("c")), (20, closing(3)), due=2 * MS
    )
    one.close(21 * MS, API)
    assert one.finished
    assert (one.events, one.outputs) == (8, 3)
    assert one.ttft_ms == 5
    assert list(one.gaps_ms()) == [10]
    assert list(one.event_gaps_ms()) == [10, 0]


@pytest.mark.parametrize("separator", [b"\n\n", b"\r\n\r\n"])
def test_any_cut_gives_the_same_counts_and_events(separator: bytes) -> None:
    stream = (opening() + delta("a") + delta("b") + closing(2)).replace(
        b"\n", separator[: len(separator) // 2]
    )
    whole = exchange((1, stream), keep=True)
    for size in range(1, 40):
        pieces = [(1, stream[at : at + size]) for at in range(0, len(stream), size)]
        cut = exchange(*pieces, keep=True)
        cut.close(2 * MS, API)
        assert (cut.events, cut.outputs, cut.size) == (7, 2, len(stream))
        assert cut.finished == whole.finished or cut.error is None
        assert [event for _, event in cut.each()] == [event for _, event in whole.each()]


def test_an_events_time_is_that_of_the_read_which_completed_it() -> None:
    event = delta("a")
    one = exchange((1, opening() + event[:9]), (8, event[9:-1]), (9, event[-1:]), keep=True)
    assert one.reads == [(9 * MS, 1)]
    assert one.each()[-1] == (9 * MS, event.strip())


def test_the_servers_token_counts() -> None:
    tokens = exchange((1, opening()), (2, closing(41))).tokens(API)
    assert tokens is not None
    assert (tokens.prompt, tokens.output, tokens.cached) == (10, 41, 3)
    assert exchange((1, opening())).tokens(API) is None


def test_bad_ends_are_errors() -> None:
    cut = exchange((1, opening() + delta("a")))
    cut.close(2, API)
    assert "without event: message_stop" in (cut.error or "")

    failed = exchange(
        (1, opening() + b'event: error\ndata: {"type":"error","error":{"message":"broken"}}\n\n')
    )
    failed.close(2, API)
    assert "broken" in (failed.error or "")

    half = exchange((1, opening() + closing(0) + b"event: mess"))
    half.close(2, API)
    assert "within an event" in (half.error or "")

    refused = Exchange(0)
    refused.status = 529
    refused.plain(b'{"error":"overloaded"}')
    refused.close(2, API)
    assert refused.error == 'status 529: {"error":"overloaded"}'

    mute = exchange()
    mute.close(2, API)
    assert mute.error == "no event stream: (nothing)"
    assert not any(one.finished for one in (cut, failed, half, refused, mute))


def test_the_first_error_stays() -> None:
    one = exchange((1, opening()))
    one.fail(2, "reset")
    one.fail(3, "again")
    one.close(4, API)
    assert one.error is not None
    assert one.error.startswith("reset (after 2 events)")
    assert not one.finished
