"""What OpenAI's APIs have in common."""
