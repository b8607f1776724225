"""Configures the bucket in which ledger entries outlive processes. Parsers write to it, preprocessors read."""

from services.runtime.config import MIB, LedgerStoreConfig
from services.runtime.storage.kv import BucketConfig

BUCKET = "tw_ledger"
MAX_VALUE_BYTES = MIB


def ledger_bucket(config: LedgerStoreConfig) -> BucketConfig:
    """Returns the bucket of all models; its keys are digests that include the model."""
    return BucketConfig(
        name=BUCKET,
        description="Turnwire: the tokens of turns",
        ttl_s=config.ledger_ttl_s,
        max_bytes=config.ledger_store_mb * MIB,
        max_value_bytes=MAX_VALUE_BYTES,
    )
