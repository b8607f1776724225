"""Images of requests, as several stages need them: their data, their parts of a conversation, and
the bucket in which frontends store them for workers."""
