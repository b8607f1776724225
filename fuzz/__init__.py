"""Random input for the code that reads untrusted text, and what must hold for it."""
