from __future__ import annotations

import numpy as np
import pytest

from edge_vlm_ros.vision.change_gate import ChangeGate, FrameRateGate


def grey(value: int) -> np.ndarray:
    return np.full((48, 64, 3), value, dtype=np.uint8)


def test_threshold_zero_lets_everything_through() -> None:
    gate = ChangeGate(0)
    assert [gate.passes(grey(9)) for _ in range(3)] == [True] * 3


def test_a_still_scene_passes_once() -> None:
    gate = ChangeGate(2.0)
    assert [gate.passes(grey(v)) for v in (100, 100, 101, 99)] == [True, False, False, False]
    assert gate.passes(grey(102))


def test_slow_drift_adds_up_against_the_frame_let_through() -> None:
    gate = ChangeGate(3.0)
    assert [gate.passes(grey(v)) for v in (100, 101, 102, 103, 104, 105, 106)] == [
        True, False, False, True, False, False, True,
    ]  # fmt: skip


def test_difference_is_the_mean_over_the_picture() -> None:
    gate = ChangeGate(20.0)
    scene = grey(0)
    gate.passes(scene)
    scene = scene.copy()
    scene[:, :4] = 255  # a sixteenth of the picture: 15.9
    assert not gate.passes(scene)
    scene[:, :8] = 255  # an eighth: 31.9
    assert gate.passes(scene)


def test_reset_lets_the_next_frame_through() -> None:
    gate = ChangeGate(5.0)
    gate.passes(grey(1))
    gate.reset()
    assert gate.passes(grey(1))


@pytest.mark.parametrize("threshold", [-1.0, 256.0, float("nan")])
def test_thresholds_outside_the_range_are_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="0 to 255"):
        ChangeGate(threshold)


def rate(gate: FrameRateGate, camera_fps: float, jitter_s: float, seconds: float = 20.0) -> float:
    noise = np.random.default_rng(3).uniform(-jitter_s, jitter_s, int(camera_fps * seconds))
    times = sorted(50 + k / camera_fps + noise[k] for k in range(len(noise)))
    return sum(gate.passes(t) for t in times) / seconds


def test_rate_zero_lets_everything_through() -> None:
    gate = FrameRateGate(0)
    assert all(gate.passes(1.0) for _ in range(5))


@pytest.mark.parametrize(
    ("camera", "limit", "expected"), [(30, 10, 10), (30, 30, 30), (30, 20, 20), (5, 10, 5)]
)
def test_rate_is_met_in_spite_of_jitter(camera: float, limit: float, expected: float) -> None:
    assert rate(FrameRateGate(limit), camera, 0.005) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("times", [2, 3, 4, 6])
def test_frames_of_a_faster_camera_pass_evenly(times: int) -> None:
    limit = 2.0
    gate, period = FrameRateGate(limit), 1 / limit
    jitter = np.random.default_rng(1).uniform(-0.02, 0.02, 200) * period / times
    arrivals = 10 + np.arange(200) * period / times + jitter
    passed = [t for t in arrivals if gate.passes(float(t))]
    assert np.diff(passed) == pytest.approx(period, rel=0.05)


def test_no_burst_after_a_pause() -> None:
    gate = FrameRateGate(10)
    assert gate.passes(0.0)
    passed = [t for t in np.arange(60.0, 61.0, 0.01) if gate.passes(float(t))]
    assert 9 <= len(passed) <= 11
    assert passed[1] - passed[0] >= 0.049


def test_frame_rate_reset() -> None:
    gate = FrameRateGate(1)
    assert gate.passes(5.0)
    assert not gate.passes(5.1)
    gate.reset()
    assert gate.passes(5.2)


def test_negative_rates_are_refused() -> None:
    with pytest.raises(ValueError, match="max_fps"):
        FrameRateGate(-1)
