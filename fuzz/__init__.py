"""Coverage-guided fuzzing of the code that reads untrusted text: parser core and requests."""
