"""`ttm data bags`: recorded bags to episodes, by the ROS package in a process of its own."""
