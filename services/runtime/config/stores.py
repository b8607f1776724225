"""Settings of what is stored in JetStream."""

from dataclasses import dataclass, field
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from services.runtime.config.base import MIB, Config, Positive
from services.runtime.config.service import BusConfig


@dataclass(frozen=True, kw_only=True)
class LedgerStoreConfig(Config):
    """The bucket of earlier turns."""

    ledger_ttl_s: Positive = 24 * 3600.0
    """Time after which JetStream deletes a turn that was not written again; `turnwire buckets`
    applies it."""
    ledger_store_mb: Annotated[int, Parameter(validator=Number(gte=0))] = 512
    """JetStream storage in MiB for the turns of all models, the same for preprocessor and parser;
    `turnwire buckets` applies it. 0: memory only."""


@dataclass(frozen=True, kw_only=True)
class ResponseStoreConfig(Config):
    """The limits of the store of Responses and message threads."""

    response_store_ttl_s: Positive = 24 * 3600.0
    """Time after which a stored response, or reply of a thread, is deleted."""
    response_store_bytes: Annotated[int, Parameter(validator=Number(gte=MIB))] = 256 * MIB
    """Most bytes of stored responses and threads in a frontend and, if they are shared, in
    JetStream, where `turnwire buckets` applies it."""


@dataclass(frozen=True, kw_only=True)
class ImageStoreConfig(Config):
    """The bucket of images, for models that get them."""

    image_ttl_s: Positive = 6 * 3600.0
    """Time after which JetStream deletes an image that was not sent again; `turnwire buckets`
    applies it."""
    image_store_mb: Annotated[int, Parameter(validator=Number(gte=16))] = 1024
    """JetStream storage in MiB for images; `turnwire buckets` applies it."""


@dataclass(frozen=True, kw_only=True)
class RolloutStoreConfig(Config):
    """The bucket of rollouts, for training."""

    rollout_ttl_s: Positive = 24 * 3600.0
    """Time after which JetStream deletes a turn of a rollout; `turnwire buckets` applies it."""
    rollout_store_mb: Annotated[int, Parameter(validator=Number(gte=0))] = 1024
    """JetStream storage in MiB for rollouts; beyond it the oldest are deleted. `turnwire buckets`
    applies it. 0: rollouts are off."""


@dataclass(frozen=True, kw_only=True)
class BucketsConfig(LedgerStoreConfig, ResponseStoreConfig, ImageStoreConfig, RolloutStoreConfig):
    """The buckets in JetStream, which `turnwire buckets` creates."""

    bus: BusConfig = field(default_factory=BusConfig)
    bucket_replicas: Annotated[int, Parameter(validator=Number(gte=1, lte=5))] | None = None
    """Servers of a NATS cluster that hold a copy of each bucket; default: 5, 3 or 1, as many as
    there are. With 3, the buckets outlive one server."""
    every_s: Positive | None = None
    """Keep running, and make lost buckets again at this interval."""
