"""The preprocessor: makes a conversation's prompt, as token ids, and sends it to a worker."""
