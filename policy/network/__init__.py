"""The policy network around the temporal core."""
