"""turnwire up: the whole pipeline on one machine."""
