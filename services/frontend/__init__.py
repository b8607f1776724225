"""The frontend stage: HTTP requests of several APIs in, event streams and documents out."""
