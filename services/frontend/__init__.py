"""The frontend stage: answers HTTP requests of several APIs with event streams and documents."""
