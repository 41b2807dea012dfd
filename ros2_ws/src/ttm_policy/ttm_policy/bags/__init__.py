"""Converts recorded bags (rosbag2) to episodes and back, by the robot's contract."""
