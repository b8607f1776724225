"""Images on their way from the bucket to the engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from schemas import subjects
from schemas.control import Cancel
from schemas.conversation import Sampling
from schemas.errors import MEDIA_MISSING, ErrorInfo, ErrorKind
from schemas.events import PromptImage
from schemas.requests import GenerateReply, GenerateRequest, ThoughtBudget, ThoughtSpelling
from schemas.token_ids import pack_ids
from services.images.image_data import image_hash
from services.images.store import ImageStore, image_bucket
from services.runtime.config.stages import WorkerConfig
from services.runtime.config.stores import ImageStoreConfig
from services.runtime.process import Process
from services.runtime.storage.kv import create_bucket
from services.worker.engines.registry import open_engine
from services.worker.service import Worker
from tests.kit.every import Cases
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually
from tests.kit.worker import WorkerTrial
from tests.worker.vision import VisionPrompts, image

pytestmark = pytest.mark.parametrize("vision_dir", ["idefics"], indirect=True)
TEXT = "There is some text before the image, more than a block of it. " * 6


class Trial(WorkerTrial):
    """A worker with the script engine, and a frontend's store of images."""

    service: Worker

    def __init__(self, worker: Process, shard: Process, model: Path) -> None:
        super().__init__(worker, shard)
        self.store = ImageStore(shard.bus, ImageStoreConfig(), shard.log)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def token(self, text: str) -> int:
        """A token of the model."""
        token = self._tokenizer.token_to_id(text)
        assert token is not None
        return token

    def asked(
        self, turn: str, ids: list[int], images: list[PromptImage], **more: Any
    ) -> GenerateRequest:
        """A request with images."""
        stop_ids, sampling = [self.token("<|im_end|>")], Sampling(max_tokens=300)
        return self.request(turn, ids, images=images, stop_ids=stop_ids, sampling=sampling, **more)

    def cached(self, turn: str) -> int | None:
        """How many tokens the turn found in the cache."""
        return next(e.cached for e in self.entries if e.turn == turn and e.cached is not None)

    async def answer(self, turn: str) -> str:
        """The text of an accepted turn."""
        await self.end_of(turn)
        text: str = self._tokenizer.decode(self.ids(turn), skip_special_tokens=False)
        return text


@pytest.fixture
async def trial(
    own_nats: NatsServer, make_process: MakeProcess, vision_dir: Path
) -> AsyncIterator[Trial]:
    url = own_nats.url
    shard = await make_process("parser", "p", url=url)
    made = Trial(await make_process("worker", "w", url=url), shard, vision_dir)
    await create_bucket(shard.bus, image_bucket(ImageStoreConfig()))
    engine = open_engine("script", WorkerConfig(model=str(vision_dir)))
    info = await engine.start()
    made.service = await made.start(engine, info)
    yield made
    await engine.stop(1.0)


def placed(vision: VisionPrompts, *parts: str | bytes) -> tuple[list[int], list[PromptImage]]:
    """A prompt as a preprocessor sends it."""
    ids, images = vision.prompt(*parts)
    return ids, [PromptImage(image_hash(one.data, None), one.at, one.tokens) for one in images]


def error_of(reply: GenerateReply) -> ErrorInfo:
    assert reply.error is not None
    return reply.error


async def test_engine_gets_the_image_and_the_second_request_reads_nothing(
    trial: Trial, vision: VisionPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = list[str]()
    get = ImageStore.get

    async def counted(self: ImageStore, name: str) -> bytes:
        reads.append(name)
        return await get(self, name)

    monkeypatch.setattr(ImageStore, "get", counted)
    red, blue = image("red", 112, 56), image("blue", 84, 84)
    ids, images = placed(vision, TEXT, red, " and ", blue, " and ", red)
    for data in (red, blue):
        await trial.store.put(image_hash(data, None), data)
    first = await trial.send(trial.asked("t", ids, images))
    assert (first.error, first.expected_cached) == (None, 0)
    answer = await trial.answer("t")
    names = [one.hash for one in images]
    for name, size in zip(names, ("112 x 56", "84 x 84", "112 x 56"), strict=True):
        assert f"I see an image of {size} pixels ({name[:8]})." in answer
    assert sorted(reads) == sorted(set(names))
    second = await trial.send(trial.asked("u", ids, images))
    assert (second.error, second.expected_cached) == (None, (len(ids) - 1) // 16 * 16)
    assert await trial.answer("u") == answer
    assert trial.cached("u") == second.expected_cached
    assert len(reads) == 2
    ids, images = placed(vision, TEXT, blue, " and ", blue, " and ", red)
    other = await trial.send(trial.asked("v", ids, images))
    assert other.expected_cached == images[0].at // 16 * 16, "equal text with another image"
    await trial.answer("v")
    assert trial.cached("v") == other.expected_cached


async def test_image_that_is_not_stored_is_named_by_its_code(
    trial: Trial, vision: VisionPrompts
) -> None:
    ids, images = placed(vision, image("red"), image("blue"))
    await trial.store.put(images[0].hash, image("red"))
    error = error_of(await trial.send(trial.asked("t", ids, images)))
    assert (error.kind, error.code) == (ErrorKind.UNAVAILABLE, MEDIA_MISSING)
    await trial.store.put(images[1].hash, image("blue"))
    assert (await trial.send(trial.asked("t", ids, images))).error is None, (
        "the next attempt finds it"
    )
    await trial.answer("t")


async def test_places_outside_the_prompt_that_overlap_or_are_in_no_order_are_refused(
    trial: Trial, vision: VisionPrompts, cases: Cases
) -> None:
    ids, images = placed(vision, image("red"), image("blue"))
    first, second = images
    longer = msgspec.structs.replace(first, tokens=second.at - first.at + 1)
    places = [(-1, 4), (0, 0), (0, 1 << 40), (1 << 40, 4)]
    wrong = [[PromptImage(first.hash, at, tokens)] for at, tokens in places]
    asked = [trial.asked("t", ids, one) for one in [*wrong, [second, first], [longer, second]]]
    output = pack_ids(ids[second.at :])
    asked.append(trial.asked("t", ids[: second.at], images, resume=output))
    for request in asked:
        with cases.case(*((one.at, one.tokens) for one in request.images)):
            error = error_of(await trial.send(request))
            assert error.kind is ErrorKind.INVALID
            assert "an image is not at its place in the prompt of" in error.message


async def test_resumed_turns_ended_thoughts_and_prefills_have_their_images(
    trial: Trial, vision: VisionPrompts
) -> None:
    await trial.store.put(image_hash(image(), None), image())
    ids, images = placed(vision, TEXT, image(), TEXT)
    early = trial.asked("early", ids, images, parser="", frontend="")
    assert (await trial.send(early)).error is None
    reply = await trial.send(trial.asked("t", ids, images))
    assert reply.expected_cached == (len(ids) - 1) // 16 * 16
    whole = await trial.answer("t")
    seen = f"I see an image of 84 x 56 pixels ({images[0].hash[:8]})."
    assert seen in whole

    half = trial.ids("t")[: len(trial.ids("t")) // 2]
    reply = await trial.send(trial.asked("resumed", ids, images, resume=pack_ids(half)))
    assert reply.expected_cached is not None
    assert reply.expected_cached >= len(ids) // 16 * 16
    assert await trial.answer("resumed") == whole

    tokens = {text: pack_ids([trial.token(text)]) for text in ("<think>", "</think>")}
    end = tokens["</think>"]
    spelling = ThoughtSpelling(tokens, ["<think>"], ["</think>"], ["</think>"], end, end)
    budget = ThoughtBudget.of(spelling, 2, in_reasoning=False)
    thinking = trial.asked("thinks", ids, images, thought_budget=budget)
    assert (await trial.send(thinking)).error is None
    assert seen in await trial.answer("thinks")
    assert trial.ids("thinks").index(trial.token("</think>")) == 3


class SlowStore:
    """Holds reads of images back until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self.release = asyncio.Event()
        get = ImageStore.get

        async def held(store: ImageStore, name: str) -> bytes:
            self.waiting += 1
            await self.release.wait()
            return await get(store, name)

        monkeypatch.setattr(ImageStore, "get", held)


async def test_turn_cancelled_while_its_image_is_fetched_is_not_decoded(
    trial: Trial, vision: VisionPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowStore(monkeypatch)
    await trial.store.put(image_hash(image(), None), image())
    sent = asyncio.create_task(trial.send(trial.asked("t", *placed(vision, image()))))
    await eventually(lambda: slow.waiting == 1)
    trial.shard.publish(subjects.cancel("m"), Cancel("t", 1, "hangup"))
    other = await trial.send(trial.asked("u", vision.prompt("Hello")[0], []))
    assert other.error is None, "a turn without images does not wait"
    slow.release.set()
    error = error_of(await sent)
    assert (error.kind, error.message) == (ErrorKind.UNAVAILABLE, "the turn was cancelled")
    await trial.answer("u")
    assert not trial.ids("t")
