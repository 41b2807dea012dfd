"""`ttm data bags`: recorded bags to episodes and back, by the ROS package in a process of its own."""
