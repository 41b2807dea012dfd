"""`ttm record`: record episodes from a robot's topics, by the ROS package in a process of its own."""
