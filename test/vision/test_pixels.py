from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_vlm_ros.model_profile import load_profile
from edge_vlm_ros.vision.pixels import PixelTable

ROOT = Path(__file__).resolve().parents[2]
PROFILE = load_profile(ROOT / "config/models/demo.yaml").encoder
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def test_scale_mean_and_std_are_applied_per_channel() -> None:
    fields = {"scale": 0.5, "mean": (1.0, 2.0, 3.0), "std": (4.0, 5.0, 8.0)}
    table = PixelTable(PROFILE.model_copy(update=fields))
    expected = (PIXELS * 0.5 - np.array([1.0, 2.0, 3.0])) / np.array([4.0, 5.0, 8.0])
    for values in (
        table.channels_first(PIXELS)[0].transpose(1, 2, 0),
        table.channels_last(PIXELS)[0],
    ):
        assert values.dtype == np.float32
        assert np.array_equal(values, expected.astype(np.float32))


def test_shapes_are_those_of_a_batch_of_one_and_contiguous() -> None:
    table = PixelTable(PROFILE)
    first, last = table.channels_first(PIXELS), table.channels_last(PIXELS)
    assert first.shape == (1, 3, 5, 7) and last.shape == (1, 5, 7, 3)
    assert first.flags.c_contiguous and last.flags.c_contiguous
