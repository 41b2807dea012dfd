"""`ttm data play`: an episode as a film, or on the topics of a robot by the ROS package."""
