"""Summaries of conversations in the Messages API: an edit of `context_management` (`edit`), and the
request with `compaction` (`request`), which answers with a signed block (`signature`)."""
