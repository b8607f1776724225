"""One module per target: `one(data)` runs it, `seeds()` yields its corpus, `mutate` changes an
input."""
