"""Reports how prompts depart from earlier ones, and from those of the reference tokenizer."""
