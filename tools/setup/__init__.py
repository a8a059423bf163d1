"""Set-up of a working copy: `.venv` with ROS 2 wheels, llama.cpp and the interfaces."""
