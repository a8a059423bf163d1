"""All that holds when KV moves between engines holds for frames in grids."""

from test_transfer import *  # noqa: F403
