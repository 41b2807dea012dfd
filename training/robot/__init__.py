"""`ttm robot`: start the ROS 2 nodes as processes."""
