"""Coverage-guided fuzzing of what reads foreign text: the parser core, the detokenizer, stop strings, requests."""
