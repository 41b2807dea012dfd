"""A person drives the robot: by keys, a gamepad, a leader arm, or a web page."""
