"""Long use of a runtime that is too small for it: nothing is lost, nothing grows."""

from __future__ import annotations
