"""What work costs, and which engine is to do it."""
