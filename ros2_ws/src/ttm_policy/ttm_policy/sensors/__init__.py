"""What takes the place of a robot's sensors: recorded episodes, and made-up values."""
