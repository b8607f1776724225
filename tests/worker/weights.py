"""What every engine with weights that change must do: `UpdatableEngine` as tests."""

import asyncio
from pathlib import Path

import pytest

from schemas.errors import EngineFailed, Invalid, Unavailable
from schemas.events import UNKNOWN_WEIGHTS
from services.tokenization.block_keys import weights_salt
from services.worker.engine import EngineDelta, UpdatableEngine
from tests.kit.engines import begun, cached_of, ids_of, rest, update, versions_of
from tests.worker.conformance import Bench

QUIET_S = 0.3
"""How long no step may come of a paused engine."""


class WeightsConformance:
    """The suite. A subclass has a fixture `bench`, and a fixture `sources`: weights that can be
    loaded, and such as cannot."""

    @pytest.fixture
    def engine(self, bench: Bench) -> UpdatableEngine:
        assert isinstance(bench.engine, UpdatableEngine)
        return bench.engine

    async def test_paused_engine_takes_turns_and_decodes_nothing(
        self, bench: Bench, engine: UpdatableEngine
    ) -> None:
        early = asyncio.create_task(rest(await begun(bench.engine, bench.request(max_tokens=400))))
        await engine.pause(abort=False)
        await engine.pause(abort=False)
        late = asyncio.create_task(bench.run(bench.request(max_tokens=8)))
        done, _ = await asyncio.wait([early, late], timeout=QUIET_S)
        assert not done
        await engine.resume()
        await engine.resume()
        async with asyncio.timeout(bench.wait_s):
            assert len(ids_of(await late)) == 8
            assert len(ids_of(await early)) >= 300
        await bench.idle()

    async def test_pause_can_end_all_turns_with_an_error_that_is_retried(
        self, bench: Bench, engine: UpdatableEngine
    ) -> None:
        open_turns = [await begun(bench.engine, bench.request(max_tokens=2000)) for _ in range(2)]
        await engine.pause(abort=True)
        async with asyncio.timeout(bench.wait_s):
            ends = await asyncio.gather(*map(rest, open_turns), return_exceptions=True)
        assert [type(end) for end in ends] == [Unavailable] * 2
        assert len({id(end) for end in ends}) == 2
        await engine.resume()
        assert len(await bench.ids(bench.request(max_tokens=8))) == 8

    async def test_tokens_after_an_update_are_of_the_new_version(
        self, bench: Bench, engine: UpdatableEngine, sources: tuple[Path, Path]
    ) -> None:
        """An engine that is sure only at the end says them then."""
        taken: list[EngineDelta] = []
        turn = await begun(bench.engine, bench.request(max_tokens=1500))
        async for delta in turn:
            taken.append(delta)
            if len(taken) == 5:
                await update(engine, sources[0], 3)
                assert engine.weights_version == 3
        versions = versions_of(taken)
        assert versions == sorted(versions)
        assert set(versions) == {0, 3}
        told = [delta.weights for delta in taken if delta.weights is not None]
        assert told == [3] or (told == [UNKNOWN_WEIGHTS] and taken[-1].spans)
        deltas = await bench.run(bench.request())
        assert set(versions_of(deltas)) == {3}

    async def test_engine_stays_paused_after_an_update(
        self, bench: Bench, engine: UpdatableEngine, sources: tuple[Path, Path]
    ) -> None:
        await engine.pause(abort=False)
        waiting = asyncio.create_task(bench.run(bench.request()))
        await engine.update_weights(str(sources[0]), 1)
        await engine.update_weights(str(sources[0]), 2)
        done, _ = await asyncio.wait([waiting], timeout=QUIET_S)
        assert not done
        await engine.resume()
        async with asyncio.timeout(bench.wait_s):
            assert set(versions_of(await waiting)) == {2}

    async def test_failed_update_leaves_the_old_weights(
        self, bench: Bench, engine: UpdatableEngine, sources: tuple[Path, Path]
    ) -> None:
        turn = await begun(bench.engine, bench.request(max_tokens=400))
        ids = await bench.ids(bench.request())
        with pytest.raises((Invalid, EngineFailed)):
            await update(engine, sources[1], 1)
        assert engine.weights_version == 0
        assert set(versions_of(await rest(turn))) == {0}
        assert await bench.ids(bench.request()) == ids

    async def test_prompt_finds_no_blocks_of_another_version(
        self, bench: Bench, engine: UpdatableEngine, sources: tuple[Path, Path]
    ) -> None:
        if bench.info.block_tokens is None:
            pytest.skip("no prefix sharing")
        salted = "salt" in bench.info.features

        async def found() -> int | None:
            salt = weights_salt(engine.weights_version, None) if salted else None
            return cached_of(await bench.run(bench.request(cache_salt=salt)))

        for version in (1, 2):
            assert not await found()
            await bench.idle()
            assert await found() == bench.in_cache(len(bench.endless) - 1)
            await update(engine, sources[0], version)
        assert not await found()
