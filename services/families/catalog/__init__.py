"""One module per family: the raw form quoted, the grammar as data (`FAMILY`), what is special about
it."""
