"""The policy network: everything around the temporal core."""
