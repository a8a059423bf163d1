"""All that holds for answers that go on elsewhere holds for frames in grids."""

from test_resumption import *  # noqa: F403
