"""Between nanoseconds and ROS stamps."""

from __future__ import annotations

from builtin_interfaces.msg import Time

_NS = 1_000_000_000


def stamp_to_ns(stamp: Time) -> int:
    return int(stamp.sec) * _NS + int(stamp.nanosec)


def is_usable(stamp: Time) -> bool:
    """Whether a stamp is a time at all: zero stands for none, and nanoseconds stay below 1e9."""
    return int(stamp.nanosec) < _NS and stamp_to_ns(stamp) != 0


def ns_to_stamp(ns: int) -> Time:
    """Raises ValueError for a time that does not fit into 32-bit seconds."""
    sec, nanosec = divmod(ns, _NS)
    if not -(2**31) <= sec < 2**31:
        raise ValueError(f"{ns} ns does not fit into a ROS stamp")
    return Time(sec=sec, nanosec=nanosec)
