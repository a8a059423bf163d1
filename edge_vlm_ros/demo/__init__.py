"""Synthetic table-top scenes: what is on the table, pictures of it, questions and true answers.

ROS-free and torch-free. The demo model was trained on these scenes, the demo cameras publish them,
and tests know the truth about them because everything follows from a seed.
"""
