"""One module for each agent client; `CLIENT` in it is a `services.cli.connect.client.Client`."""
