"""What the policy sees of a robot: the newest message of every input."""
