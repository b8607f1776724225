"""What every engine must do: the contract of `services.worker.engine` as tests."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from schemas.conversation import OutputFormat
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import Engine, EngineDelta, EngineDied, EngineInfo, EngineRequest
from services.worker.engine_checks import check
from services.worker.features import SAMPLING_FIELDS
from tests.kit import engines
from tests.kit.engines import begun, rest
from tests.kit.listening import Listener, listen
from tests.kit.waiting import LIMIT_S, eventually

output = engines.ids_of
cached = engines.cached_of


@dataclass
class Bench:
    """One started engine."""

    engine: Engine
    info: EngineInfo
    endless: list[int]
    """A prompt with output that only max_tokens ends, for at least 2,000 tokens."""
    kill: Callable[[], None]
    """The engine dies, in its own way; with a turn open, so that it can be told."""
    slots: int = 4
    wait_s: float = LIMIT_S
    """How long a test waits for the engine."""
    cache_unit: int | None = None
    """How many tokens the engine reuses together; None: a block."""
    requests: int = 0

    def request(
        self, token_ids: Sequence[int] | None = None, *, turn: str = "", **fields: Any
    ) -> EngineRequest:
        """A request of 24 greedy tokens, by default; `fields` as those of `engines.request`."""
        self.requests += 1
        ids = list(self.endless if token_ids is None else token_ids)
        asked: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0, **fields}
        made = engines.request(turn or f"turn-{self.requests}", ids, **asked)
        check(made, self.info)
        return made

    def in_cache(self, computed: int) -> int:
        """How many tokens a prompt finds of those that were computed and are not its last."""
        unit = self.cache_unit or self.info.block_tokens or 1
        return computed // unit * unit

    async def run(self, request: EngineRequest) -> list[EngineDelta]:
        return await engines.run(self.engine, request)

    async def ids(self, request: EngineRequest) -> list[int]:
        return output(await self.run(request))

    async def idle(self) -> None:
        """Returns when nothing is open."""
        load = self.engine.load
        await eventually(lambda: not load().running and not load().waiting, self.wait_s)


class Conformance:
    """The suite. A subclass has a fixture `bench`: a started engine and how to make it do things."""

    async def test_one_terminal_delta_at_the_end(self, bench: Bench) -> None:
        deltas = await bench.run(bench.request(max_tokens=24))
        before = [list(delta.ids) for delta in deltas]
        assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert (deltas[-1].finish, deltas[-1].stop_id) == (FinishReason.LENGTH, None)
        assert len(output(deltas)) == 24
        assert len([delta for delta in deltas if delta.ids]) >= 12, "while it decodes"
        together = await asyncio.gather(*(bench.run(bench.request()) for _ in range(16)))
        assert [output(one) for one in together] == [output(deltas)] * 16
        assert [delta.ids for delta in deltas] == before, "no ids are taken back"

    async def test_the_same_prompt_gives_the_same_greedy_tokens(self, bench: Bench) -> None:
        prompt = bench.endless
        first = await bench.run(bench.request(prompt))
        second = await bench.run(bench.request(prompt))
        (told,) = [delta for delta in first if delta.cached is not None]
        assert told.waited_s is None or told.waited_s >= 0
        assert [delta for delta in first if delta.waited_s is not None] in ([], [told])
        assert output(first) == output(second)
        if bench.info.block_tokens is not None and len(prompt) > 2 * bench.info.block_tokens:
            assert cached(first) == 0
            assert cached(second) == bench.in_cache(len(prompt) - 1)

    async def test_a_second_turn_finds_the_first_in_the_cache(self, bench: Bench) -> None:
        if bench.info.block_tokens is None:
            pytest.skip("no prefix sharing")
        ids = await bench.ids(bench.request(max_tokens=64))
        whole = len(bench.endless) + len(ids)
        again = await bench.run(
            bench.request(bench.endless + ids + bench.endless[:10], max_tokens=4)
        )
        found = cached(again)
        assert found is not None
        # The last output token has not been through the model when the turn ends.
        assert (whole - 1) // bench.info.block_tokens * bench.info.block_tokens <= found <= whole

    async def test_stopped_turn_goes_on_from_its_tokens_and_computes_few_again(
        self, bench: Bench
    ) -> None:
        """As a thought is ended at its budget: the turn is stopped, and continued with tokens that
        it did not choose."""
        request, taken = bench.request(max_tokens=400), list[int]()
        stream = listen(bench.engine, request)
        async for delta in stream:
            taken += delta.ids
            if len(taken) >= 100:
                break
        await stream.aclose()
        whole = [*bench.endless, *taken, *bench.endless[:3]]
        deltas = await bench.run(bench.request(whole, max_tokens=8))
        assert len(output(deltas)) == 8
        if bench.info.block_tokens is not None:
            assert len(whole) - (cached(deltas) or 0) <= 64

    async def test_a_stop_id_ends_the_turn_and_is_not_among_the_ids(self, bench: Bench) -> None:
        """Also as the very last token of the limit."""
        free = await bench.ids(bench.request(max_tokens=24))
        stop = free[10]
        others = [token for token in range(1, 400) if token not in free][:3]
        deltas = await bench.run(bench.request(max_tokens=24, stop_ids=[*others, stop]))
        assert deltas[-1].finish is FinishReason.STOP
        assert deltas[-1].stop_id == stop
        assert output(deltas) == free[: free.index(stop)]
        last = max(map(free.index, free))
        deltas = await bench.run(bench.request(max_tokens=last + 1, stop_ids=[free[last]]))
        assert (deltas[-1].finish, deltas[-1].stop_id) == (FinishReason.STOP, free[last])

    @pytest.mark.parametrize("ending", ["no token", "one token", "a stop"])
    async def test_short_turn_leaves_its_whole_prompt_in_the_cache(
        self, bench: Bench, ending: str
    ) -> None:
        block, vocabulary = bench.info.block_tokens, bench.info.vocab_size
        if block is None:
            pytest.skip("no prefix sharing")
        assert vocabulary is not None
        endings: dict[str, dict[str, Any]] = {
            "no token": {"max_tokens": 0},
            "one token": {"max_tokens": 1},
            "a stop": {"max_tokens": 9, "stop_ids": range(vocabulary)},
        }
        room = min(bench.info.max_model_len, bench.info.kv_tokens or bench.info.max_model_len)
        text = bench.endless * (2000 // len(bench.endless) + 1)
        for length in (block - 1, block, block + 1, 1100, 1535, 1537):
            if length < room:
                deltas = await bench.run(bench.request(text[:length], **endings[ending]))
                assert len(output(deltas)) == (ending == "one token")
                again = await bench.run(bench.request(text[:length], max_tokens=2))
                found = cached(again)
                assert found is not None
                assert (length - 1) // block * block <= found <= length, length

    async def test_prompt_that_fills_the_window_can_be_prefilled(self, bench: Bench) -> None:
        room = min(bench.info.max_model_len, bench.info.kv_tokens or bench.info.max_model_len)
        prompt = (bench.endless * (room // len(bench.endless) + 1))[:room]
        deltas = await bench.run(bench.request(prompt, max_tokens=0))
        assert (output(deltas), deltas[-1].finish) == ([], FinishReason.LENGTH)
        assert cached(deltas) is not None
        if bench.info.block_tokens is not None:
            again = await bench.run(bench.request(prompt[:-8], max_tokens=8))
            assert cached(again) == bench.in_cache(room - 9)

    async def test_a_closed_turn_stops_decoding_and_gets_nothing_more(self, bench: Bench) -> None:
        listener = Listener()
        handle = bench.engine.open(bench.request(max_tokens=2000), listener)
        listener.opened = True
        assert not listener.deltas, "nothing is said before `open` has returned"
        for _ in range(2):
            await asyncio.wait_for(listener.get(), bench.wait_s)
        handle.close()
        listener.deltas.clear()
        assert len(await bench.ids(bench.request(max_tokens=8))) == 8
        handle.close()
        await bench.idle()
        assert not listener.deltas
        assert listener.error is None
        assert listener.broken is None

    async def test_an_id_in_use_is_refused(self, bench: Bench) -> None:
        first = await begun(bench.engine, bench.request(turn="same", max_tokens=2000))
        with pytest.raises(Invalid):
            await bench.run(bench.request(turn="same"))
        assert (await asyncio.wait_for(anext(first), bench.wait_s)).finish is None
        await first.aclose()
        assert len(await bench.ids(bench.request(turn="same", max_tokens=4))) == 4

    async def test_declared_features_are_accepted_and_others_refused(self, bench: Bench) -> None:
        """What each does is proved in the engine's own tests."""
        (first,) = await bench.ids(bench.request(max_tokens=1))
        asked: dict[str, dict[str, Any]] = {
            "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 20},
            "seed": {"temperature": 1.0, "seed": 7},
            "min_p": {"temperature": 1.0, "min_p": 0.1},
            "penalties": {"presence_penalty": 0.5, "repetition_penalty": 1.1},
            "min_tokens": {"min_tokens": 4, "stop_ids": [first]},
            "logit_bias": {"logit_bias": {1: -100.0, 2: 1.5}},
            "logprobs": {"logprobs": 0},
            "top_logprobs": {"logprobs": 2},
            "guided": {"guided": OutputFormat("json_object")},
            "grammar": {"grammar": 'start: "{" /[a-z]{1,4}/ "}"'},
            "salt": {"cache_salt": "tenant"},
            "priority": {"priority": 3},
        }
        for name, field in SAMPLING_FIELDS.items():
            value = (field.low + field.high) / 2
            asked.setdefault(field.feature, {"temperature": 1.0, name: value})
        for feature, options in asked.items():
            if feature in bench.info.features:
                deltas = await bench.run(bench.request(max_tokens=6, **options))
                assert deltas[-1].finish in (FinishReason.LENGTH, FinishReason.STOP), feature
                assert feature != "min_tokens" or len(output(deltas)) >= 4
            elif feature not in ("priority", "grammar"):  # a hint, and what no request has to have
                with pytest.raises(Invalid, match="not supported"):
                    bench.request(**options)

    async def test_logprobs_belong_to_the_ids_and_the_end_token_has_its_own_or_none(
        self, bench: Bench
    ) -> None:
        if "logprobs" not in bench.info.features:
            pytest.skip("no log probabilities")
        deltas = await bench.run(bench.request(max_tokens=8, logprobs=0))
        for delta in deltas:
            scored = [[token for token, _ in pairs] for pairs in delta.logprobs or []]
            assert scored == [[token] for token in delta.ids]
        stop = output(deltas)[2]
        for logprobs in (None, 0):
            (*_, last) = await bench.run(bench.request(stop_ids=[stop], logprobs=logprobs))
            assert last.stop_id == stop
            if last.stop_logprobs is not None:
                assert logprobs == 0
                assert last.stop_logprobs[0][0] == stop

    async def test_unequal_salts_share_nothing(self, bench: Bench) -> None:
        if not {"salt", "prefix_cache"} <= bench.info.features:
            pytest.skip("no salted cache")
        await bench.run(bench.request(cache_salt="a"))
        assert cached(await bench.run(bench.request(cache_salt="b"))) == 0
        assert cached(await bench.run(bench.request(cache_salt="a"))) != 0

    async def test_load_counts_running_and_waiting_turns_and_either_can_be_cancelled(
        self, bench: Bench
    ) -> None:
        assert (bench.engine.load().running, bench.engine.load().waiting) == (0, 0)
        busy = [listen(bench.engine, bench.request(max_tokens=1500)) for _ in range(bench.slots)]
        async with asyncio.timeout(bench.wait_s):
            await asyncio.gather(*(anext(deltas) for deltas in busy))
        queued = asyncio.create_task(bench.run(bench.request(max_tokens=4)))
        await eventually(lambda: bench.engine.load().waiting == 1, bench.wait_s)
        load = bench.engine.load()
        assert (load.running, load.waiting, load.slots) == (bench.slots, 1, bench.slots)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        assert bench.engine.load().waiting == 0
        for deltas in busy:
            await deltas.aclose()
        await bench.idle()
        assert len(await bench.ids(bench.request(max_tokens=4))) == 4

    async def test_death_ends_every_open_turn_and_is_permanent(self, bench: Bench) -> None:
        open_turns = [listen(bench.engine, bench.request(max_tokens=2000)) for _ in range(3)]
        async with asyncio.timeout(bench.wait_s):
            await asyncio.gather(*(anext(deltas) for deltas in open_turns))
        assert bench.engine.healthy()
        bench.kill()

        async with asyncio.timeout(bench.wait_s):
            ends = await asyncio.gather(*map(rest, open_turns), return_exceptions=True)
        assert [type(error) for error in ends] == [EngineDied] * 3
        assert len({id(error) for error in ends}) == 3
        assert not bench.engine.healthy()
        with pytest.raises(EngineDied):
            await bench.run(bench.request())

    async def test_stop_ends_open_turns_as_cancelled(self, bench: Bench) -> None:
        deltas = await begun(bench.engine, bench.request(max_tokens=2000))
        last = asyncio.create_task(rest(deltas))
        await asyncio.sleep(0)
        async with asyncio.timeout(bench.wait_s):
            await bench.engine.stop(5.0)
            end = (await last)[-1]
        assert end.finish is FinishReason.CANCELLED
        with pytest.raises(EngineFailed):
            await bench.run(bench.request())
