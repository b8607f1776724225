"""Every call of the other stages: placed, watched, and checked against the caller's rights."""
