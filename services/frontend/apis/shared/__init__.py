"""What several APIs share: decoding, sampling fields, errors, structured output."""
