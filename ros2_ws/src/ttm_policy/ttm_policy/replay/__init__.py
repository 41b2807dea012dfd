"""`ttm data play --topics`: a recorded episode as ROS messages."""
