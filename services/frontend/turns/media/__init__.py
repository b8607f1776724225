"""Images and documents in requests: text of PDFs, and a note to the user about what the model does not receive."""
