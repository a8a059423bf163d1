"""Command-line verbs: `ros2 run edge_vlm_ros <verb>`."""
