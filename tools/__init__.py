"""Tools of the project: run them from the repository root, as `python -m tools.<name>`."""
