"""The layers that the temporal cores and the policy network are built from."""
