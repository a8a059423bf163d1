"""What of an observation is to be believed when some are outliers."""

from __future__ import annotations

from math import sqrt

_CLIP = 2.0
"""Standard deviations beyond which an error counts as one that far off."""
_BOUND = 2.52
"""Makes the scale right for normal errors with this _CLIP."""
_SCALE_WEIGHT = 0.1
_LEAST_SCALE = 0.02
_FIRST_SCALE = 0.5


class RobustErrors:
    """The bounded errors of robust exponential smoothing after Gelper, Fried and Croux, "Robust
    forecasting with exponential and Holt-Winters smoothing", Journal of Forecasting 29 (2010).

    Each error is moved to within two scales of 0 (Huber's psi) before it is smoothed; the scale
    follows the errors with a bounded loss (Tukey's biweight). A few outliers hardly move what is
    smoothed, but when everything has changed the scale grows and it follows.
    """

    __slots__ = ("n", "_scale")

    def __init__(self) -> None:
        self.n = 0
        self._scale = _FIRST_SCALE

    def bounded(self, error: float) -> float:
        """Take the next error, observed minus expected; returns what is to be made of it."""
        scale = self._scale
        x = error / scale
        loss = _BOUND
        if -_CLIP < x < _CLIP:
            rest = 1.0 - (x / _CLIP) ** 2
            loss = _BOUND * (1.0 - rest * rest * rest)
        scale *= sqrt(1.0 + _SCALE_WEIGHT * (loss - 1.0))
        self._scale = scale = max(scale, _LEAST_SCALE)
        self.n += 1
        most = _CLIP * scale
        return min(most, max(-most, error))
