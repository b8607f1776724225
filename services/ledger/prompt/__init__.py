"""Makes a prompt's ids of its text and of the original tokens of earlier turns."""
