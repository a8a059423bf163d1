"""The ROS 2 node: parameters, cameras, the question action, topics, services, diagnostics."""
