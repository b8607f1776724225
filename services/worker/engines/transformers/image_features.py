"""Images in prompts of transformers' continuous batching, which takes token ids and nothing else.

In the ids for the library, each placeholder of an image is a number above the vocabulary that
belongs to this image alone, so that the library's prefix cache distinguishes images. A hook before
the model's forward pass puts the features of the vision tower in their places, and sets the
positions of models that count in three dimensions (M-RoPE).

Steps must run without CUDA graphs.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import signature
from itertools import count
from typing import Any, NamedTuple

import torch
from cachetools import LRUCache
from msgspec import Struct
from PIL import Image

from schemas.conversation import Sampling
from schemas.errors import Invalid
from services.images.image_data import read_pixels
from services.tokenization.image_processor import ImageProcessor
from services.worker.engine import EngineImage, EngineRequest

_FEATURE_BYTES = 512 * 1024 * 1024
"""Features that are kept: those of some hundred screenshots of a small model."""
_NUMBERS = 65_536
"""Images with a number that is kept. An image without one gets a new one, and finds no blocks in
the cache."""


class ImageFeatures(Struct, frozen=True):
    """An image as the language model gets it."""

    rows: torch.Tensor
    """One row for each placeholder."""
    shapes: Mapping[str, torch.Tensor]
    """The tensors that determine the model's positions."""
    weights: int
    """How often the weights had changed."""


class ImagePrompt(Struct, frozen=True):
    """A prompt with images, as the library's thread needs it."""

    ids: list[int]
    images: list[tuple[list[int], torch.Tensor]]
    """Each image's indexes of placeholders, and the row for each of them."""
    positions: torch.Tensor | None
    """(axes, tokens); None: the model counts 0, 1, 2."""
    shift: int
    """The offset of the positions after the prompt."""
    weights: int
    """The least of the features' `weights`."""


class _RequestSpan(NamedTuple):
    """The tokens of one request in a step."""

    start: int
    """Index of the first one in the batch."""
    first: int
    """Its index in the request."""
    tokens: int
    prompt: ImagePrompt


class ImageKey(str):
    """A request id for the library that carries the prompt. So a prompt lives as long as the
    library's own request, which goes on for a while after it was cancelled."""

    request: EngineRequest
    prompt: ImagePrompt

    def __new__(cls, key: str, request: EngineRequest, prompt: ImagePrompt) -> "ImageKey":
        """Makes a key that equals `key`."""
        made = super().__new__(cls, key)
        made.request = request
        made.prompt = prompt
        return made


class Images:
    """The images of one model. `look` and `prompt` are called on one thread, which is not the
    library's, and on that one after the weights have changed."""

    def __init__(self, model: Any, processor: ImageProcessor) -> None:
        self._model = model
        self._processor = processor
        self._embedding = model.get_input_embeddings()
        self._placeholder = int(model.config.image_token_id)
        self._get_positions = getattr(model.base_model, "get_rope_index", None)
        # One number for all tokens of an image: it has as many as its features, and blocks depend
        # on those before.
        self._next = count(self._embedding.num_embeddings)
        self._numbers: LRUCache[str, int] = LRUCache(_NUMBERS)
        self._features: LRUCache[str, ImageFeatures] = LRUCache(
            _FEATURE_BYTES, lambda features: features.rows.nbytes
        )
        self._lock = threading.Lock()
        self._weights = 0
        """How often the weights have changed."""
        self._step: list[_RequestSpan] = []
        """The spans of requests with images that the step computes."""
        self._hook = model.register_forward_pre_hook(self._place, with_kwargs=True)

    def look(self, image: EngineImage) -> ImageFeatures:
        """Returns the features, computed unless they are kept. Raises ValueError for data that is
        not an image."""
        with self._lock:
            features = self._features.get(image.hash)
            if features is None:
                features = self._encode(self._tensors(read_pixels(image.data)))
                with suppress(ValueError):  # larger than everything that is kept
                    self._features[image.hash] = features
            return features

    def prompt(self, request: EngineRequest, features: Sequence[ImageFeatures]) -> ImagePrompt:
        """Returns the prompt of a request, with the features of its images. Raises Invalid if they
        do not fit."""
        prompt = list(request.token_ids)
        ids = list(prompt)
        images: list[tuple[list[int], torch.Tensor]] = []
        for image, encoded in zip(request.images, features, strict=True):
            places = self._places(image, prompt)
            if len(places) != len(encoded.rows):
                raise Invalid(
                    f"an image has {len(places)} tokens in the prompt, "
                    f"and {len(encoded.rows)} in the model",
                    param="messages",
                )
            number = self._number(image)
            for index in places:
                ids[index] = number
            images.append((places, encoded.rows))
        kinds = [int(number != token) for number, token in zip(ids, prompt, strict=True)]
        positions, shift = self._positions(prompt, kinds, features)
        if self._model.device.type != "cpu":
            torch.accelerator.synchronize()  # the library's steps run in a stream of their own
        weights = min(encoded.weights for encoded in features)
        return ImagePrompt(ids, images, positions, shift, weights)

    def _places(self, image: EngineImage, prompt: list[int]) -> list[int]:
        """Returns the indexes of an image's placeholders."""
        end = min(image.at + image.tokens, len(prompt))
        return [index for index in range(image.at, end) if prompt[index] == self._placeholder]

    def _number(self, image: EngineImage) -> int:
        """Returns the number that stands for an image in the ids for the library."""
        with self._lock:
            number = self._numbers.get(image.hash)
            if number is None:
                number = next(self._next)
                self._numbers[image.hash] = number
            return number

    @contextmanager
    def changing(self) -> Iterator[None]:
        """While entered, no features are computed; those that were are not used again."""
        with self._lock:
            self._weights += 1
            self._features.clear()
            yield

    def follow(self, inputs: Any) -> None:
        """Notes the requests of each step. `inputs`: the library's object that prepares a batch's
        tensors."""
        prepare = inputs.prepare_batch_tensors

        def observed(requests_in_batch: Sequence[Any], *args: Any, **options: Any) -> None:
            self._step = []
            start = 0
            for request in requests_in_batch:
                tokens = request.query_length
                key = request.state.request_id
                if isinstance(key, ImageKey):
                    first = request.state.position_offset
                    self._step.append(_RequestSpan(start, first, tokens, self._current(key)))
                start += tokens
            prepare(requests_in_batch, *args, **options)

        inputs.prepare_batch_tensors = observed

    def _current(self, key: ImageKey) -> ImagePrompt:
        """Returns the prompt of a request, with features of the current weights."""
        if key.prompt.weights != self._weights:
            features = [self.look(image) for image in key.request.images]
            key.prompt = self.prompt(key.request, features)
        return key.prompt

    def gap(self) -> str | None:
        """Compares a forward pass with the model's own, over a small image. Returns why the model's
        images cannot be batched; None: they can."""
        try:
            fault = self._compare()
        except Exception as error:
            fault = f"the model's forward pass with an image fails: {type(error).__name__}: {error}"
        if fault is not None:
            self._hook.remove()
        return fault

    def _compare(self) -> str | None:
        tensors = self._tensors(Image.radial_gradient("L").resize((96, 64)).convert("RGB"))
        features = self._encode(tensors)
        ids = [1, *[self._placeholder] * len(features.rows), 1, 1]
        image = EngineImage("", at=1, tokens=len(features.rows), data=b"")
        prompt = self.prompt(EngineRequest("", ids, Sampling(), [], images=[image]), [features])

        theirs = self._tensor([ids])
        ours = self._tensor([prompt.ids])
        kinds = (ours != theirs).int()
        types = {"mm_token_type_ids": kinds, "token_type_ids": kinds}
        named = {"input_ids": theirs, **types, **tensors}
        positions = self._tensor([range(len(ids))])
        with torch.no_grad():
            expected = self._model(**_accepted(self._model.forward, named)).logits
            self._step = [_RequestSpan(0, 0, len(ids), prompt)]
            logits = self._model(input_ids=ours, position_ids=positions).logits
            self._step = []
        if torch.allclose(logits, expected, rtol=0.01, atol=0.01 * float(expected.std())):
            return None
        return (
            "the model reads images in several layers, or their tokens see later ones, "
            "which its batches cannot do"
        )

    def _tensors(self, image: Image.Image) -> dict[str, torch.Tensor]:
        inputs = self._processor.inputs([image])
        return {
            name: value.to(self._model.device)
            for name, value in inputs.items()
            if isinstance(value, torch.Tensor)
        }

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, device=self._model.device)

    def _encode(self, tensors: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """Runs the vision tower."""
        encode = self._model.get_image_features
        with torch.no_grad():
            output = encode(**_accepted(encode, tensors))
        rows = getattr(output, "pooler_output", output)
        if not isinstance(rows, torch.Tensor):
            rows = torch.cat(list(rows))
        rows = rows.reshape(-1, rows.shape[-1]).to(self._embedding.weight.dtype)
        shapes = {} if self._get_positions is None else _accepted(self._get_positions, tensors)
        return ImageFeatures(rows, shapes, self._weights)

    def _positions(
        self, ids: list[int], kinds: list[int], features: Sequence[ImageFeatures]
    ) -> tuple[torch.Tensor | None, int]:
        if self._get_positions is None:
            return None, 0
        named = {"input_ids": self._tensor([ids]), "mm_token_type_ids": self._tensor([kinds])}
        for name in features[0].shapes:
            named[name] = torch.cat([encoded.shapes[name] for encoded in features])
        positions, shift = self._get_positions(**_accepted(self._get_positions, named))
        return positions[:, 0], int(shift)

    def _place(
        self, model: Any, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Any] | None:
        """The hook: replaces ids by rows of the embedding and of images, and positions by those of
        the prompts."""
        if not self._step:
            return None
        ids = named.pop("input_ids")
        rows = self._embedding(ids.clamp(max=self._embedding.num_embeddings - 1))
        positions = named["position_ids"]
        axes = self._step[0].prompt.positions
        if axes is not None:
            positions = positions.expand(len(axes), *positions.shape).clone()
        for span in self._step:
            _put_rows(rows, span)
            _put_positions(positions, span)
        return args, {**named, "inputs_embeds": rows, "position_ids": positions}


def _put_rows(rows: torch.Tensor, span: _RequestSpan) -> None:
    """Puts the rows of images in the places that belong to a request."""
    end = span.first + span.tokens
    for places, image_rows in span.prompt.images:
        low = bisect_left(places, span.first)
        high = bisect_left(places, end)
        if low < high:
            in_batch = [span.start + place - span.first for place in places[low:high]]
            rows[0, in_batch] = image_rows[low:high]


def _put_positions(positions: torch.Tensor, span: _RequestSpan) -> None:
    """Sets the positions of a request: those of its prompt, and after it those that it counts."""
    prompt = span.prompt
    if prompt.positions is None:
        return
    end = span.first + span.tokens
    in_prompt = prompt.positions[:, span.first : end]
    after = span.start + in_prompt.shape[1]
    positions[:, 0, span.start : after] = in_prompt
    positions[:, 0, after : span.start + span.tokens] += prompt.shift


def _accepted(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that `function` has a parameter for."""
    parameters = signature(function).parameters
    return {name: value for name, value in values.items() if name in parameters}
