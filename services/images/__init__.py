"""Images of requests: reads them, and stores their data for the workers."""
