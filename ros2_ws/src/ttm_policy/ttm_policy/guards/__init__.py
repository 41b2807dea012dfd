"""What keeps the robot from moving blindly: checks of inputs, of the clock, of commands, and the e-stop.

All times are read from a steady clock, in seconds, since the clock of ROS may stop or jump.
"""
