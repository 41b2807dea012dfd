"""The policy: network, memory, runner. No ROS and no MuJoCo in here."""
