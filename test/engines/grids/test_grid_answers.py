"""Answers about frames in grids are the same however much goes on beside them."""

from test_engine_answers import *  # noqa: F403

del test_answers_are_right  # noqa: F821  (the model has not been trained for grids)
