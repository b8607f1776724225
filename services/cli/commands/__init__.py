"""Commands that are one file each."""
