"""Converts recorded bags (rosbag2) to episodes, by the robot's contract."""
