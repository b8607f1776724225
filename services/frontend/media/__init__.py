"""Handles images and documents in requests: reads PDFs, and notes in the answer what the model does
not receive."""
