"""A level that follows what is observed and is not thrown off by outliers."""

from __future__ import annotations

from math import sqrt

_CLIP = 2.0
"""Standard deviations beyond which an observation counts as one that far off."""
_BOUND = 2.52
"""Makes the scale right for normal errors with this _CLIP."""
_SCALE_WEIGHT = 0.1
_LEAST_SCALE = 0.02
_FIRST_SCALE = 0.5


class RobustLevel:
    """Robust exponential smoothing after Gelper, Fried and Croux, "Robust forecasting with
    exponential and Holt-Winters smoothing", Journal of Forecasting 29 (2010).

    Each observation is first moved to within two scales of the level (Huber's psi), then smoothed
    as usual; the scale follows the errors with a bounded loss (Tukey's biweight). A few outliers
    hardly move the level, but when everything has changed the scale grows and the level follows.
    """

    __slots__ = ("level", "n", "_scale")

    def __init__(self) -> None:
        self.level = 0.0
        self.n = 0
        self._scale = _FIRST_SCALE

    def add(self, value: float, weight: float) -> None:
        """Take an observation; ``weight``, above 0 and at most 1, is that of the new one. The first
        ones count more: there is nothing to be smoothed with yet."""
        error = value - self.level
        scale = self._scale
        x = error / scale
        loss = _BOUND
        if -_CLIP < x < _CLIP:
            rest = 1.0 - (x / _CLIP) ** 2
            loss = _BOUND * (1.0 - rest * rest * rest)
        scale *= sqrt(1.0 + _SCALE_WEIGHT * (loss - 1.0))
        self._scale = scale = max(scale, _LEAST_SCALE)
        most = _CLIP * scale
        self.n += 1
        self.level += max(weight, 1.0 / self.n) * min(most, max(-most, error))
