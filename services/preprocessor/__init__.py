"""The preprocessor: from a conversation to the prompt's token ids, and to a worker."""
