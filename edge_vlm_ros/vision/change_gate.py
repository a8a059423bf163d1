"""Gates that decide, before any encoding, whether a frame is worth remembering."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from .encoder import RgbImage

_THUMBNAIL = 32


class ChangeGate:
    """Lets a frame through when it differs from the last one that was let through.

    The difference is the mean absolute difference, on 0 to 255, of 32x32 grey thumbnails.
    Comparing with the last frame *let through*, not the last one seen, makes slow drifts add up.
    """

    def __init__(self, threshold: float) -> None:
        """Make a gate for one stream.

        Args:
            threshold: difference from which on a frame passes; 0 lets every frame through.

        Raises:
            ValueError: a threshold outside 0 to 255.
        """
        if not 0 <= threshold <= 255:
            raise ValueError(f"the change threshold must be 0 to 255, not {threshold}")
        self.threshold = threshold
        self._last: npt.NDArray[np.float32] | None = None

    def passes(self, rgb: RgbImage) -> bool:
        """Whether the frame (uint8 [H, W, 3]) passes; if so it is the new one to compare with."""
        if self.threshold == 0:
            return True
        thumbnail = _thumbnail(rgb)
        if self._last is not None:
            difference = float(np.mean(np.abs(thumbnail - self._last)))
            if difference < self.threshold:
                return False
        self._last = thumbnail
        return True

    def reset(self) -> None:
        """Forget the last frame: the next one passes."""
        self._last = None


class FrameRateGate:
    """Lets at most ``max_fps`` frames a second through, on average.

    Frames pass on a fixed grid of due times, each up to half a camera's period (half a period of
    ``max_fps`` at most) early, so that its jitter does not lower the rate: of a 30 fps camera and
    ``max_fps`` 10 every third frame passes, of one at twice ``max_fps`` every second, and of one at
    ``max_fps`` all. A frame half a period late starts the grid anew, so that no burst follows a
    pause.
    """

    def __init__(self, max_fps: float) -> None:
        """Make a gate for one stream.

        Args:
            max_fps: frames per second; 0 lets every frame through.

        Raises:
            ValueError: a negative rate.
        """
        if max_fps < 0:
            raise ValueError(f"max_fps must be >= 0, not {max_fps}")
        self.max_fps = max_fps
        self._due: float | None = None
        self._last = float("-inf")

    def passes(self, now_s: float) -> bool:
        """Whether a frame that arrives at ``now_s`` (monotonic seconds) passes."""
        if self.max_fps == 0:
            return True
        period = 1.0 / self.max_fps
        early = min(now_s - self._last, period) / 2
        self._last = now_s
        if self._due is None or now_s >= self._due + period / 2:
            self._due = now_s + period
            return True
        if now_s < self._due - early:
            return False
        self._due += period
        return True

    def reset(self) -> None:
        """Forget the past: the next frame passes."""
        self._due = None


def _thumbnail(rgb: RgbImage) -> npt.NDArray[np.float32]:
    small = cv2.resize(rgb, (_THUMBNAIL, _THUMBNAIL), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), dtype=np.float32)
