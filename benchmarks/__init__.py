"""Measurements as ratios between sides measured in one run. `python -m benchmarks.run`."""
