"""turnwire inspect: a web page that shows the turns on the bus."""
