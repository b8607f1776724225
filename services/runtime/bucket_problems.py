"""The buckets of JetStream that one process cannot use, for its metrics."""


class BucketProblems:
    """The names of the buckets."""

    def __init__(self) -> None:
        self.missing: set[str] = set()
        """The buckets that the process uses and does not find."""
        self.unwritable: set[str] = set()
        """The buckets that take no writes."""

    def count_missing(self) -> int:
        """Returns the number of `missing`."""
        return len(self.missing)

    def count_unwritable(self) -> int:
        """Returns the number of `unwritable`."""
        return len(self.unwritable)
