"""The contract between a robot's topics and a policy, and the conversions that it describes."""
