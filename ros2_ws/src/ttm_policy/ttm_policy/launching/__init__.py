"""What the launch files start, and the arguments that they take."""
