"""Stopping on a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from edge_vlm_ros.ros.spinning import StopSignals

N_SIGNALS = 20_000
SECONDS = 6.0


@pytest.fixture
def on_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop on SIGALRM, which a timer of the system sends at any instruction."""
    monkeypatch.setattr(StopSignals, "_numbers", staticmethod(lambda: (signal.SIGALRM,)))


def test_a_signal_at_any_instant_around_the_wait_ends_it(on_alarm: None) -> None:
    # 20 us covers the whole way into wait(): a missed or self-locking signal blocks for ever, which
    # the suite's time limit could not tell apart from slowness, hence a process of its own.
    code = f"""
import faulthandler, random, signal, time
from edge_vlm_ros.ros.spinning import StopSignals
faulthandler.dump_traceback_later(60.0, exit=True)
StopSignals._numbers = staticmethod(lambda: (signal.SIGALRM,))
end = time.monotonic() + {SECONDS}
for _ in range({N_SIGNALS}):
    with StopSignals() as stop:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 20e-6))
        stop.wait()
    if time.monotonic() > end:
        break
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_signals_do_not_end_the_wait(on_alarm: None) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            stop.wait()
            assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_handlers_from_before_are_back_after_the_first_signal() -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    with StopSignals() as stop:
        assert signal.getsignal(signal.SIGINT) is not before[signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
        stop.wait()
        assert {n: signal.getsignal(n) for n in before} == before
    assert signal.set_wakeup_fd(-1) == wakeup
