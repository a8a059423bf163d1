"""Shows what the set-up does, and runs its commands with their output in a log file."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STEPS = 6
_LINE_EVERY_S = 15.0  # where there is no terminal to rewrite a line on
_SHOWN_ON_FAILURE = 40


class Failed(Exception):
    """A step could not be done; the text says what was wrong and what to do."""


def note(text: str) -> None:
    print(text, flush=True)


def step(number: int, text: str) -> None:
    note(f"[{number}/{STEPS}] {text}")


@dataclass
class Ticker:
    """One line of progress: rewritten on a terminal, repeated now and then elsewhere."""

    shown: str = ""
    last: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.monotonic)

    def show(self, text: str) -> None:
        now = time.monotonic()
        on_terminal = sys.stdout.isatty()
        if text == self.shown or (now - self.last < (0.2 if on_terminal else _LINE_EVERY_S)):
            return
        self.shown, self.last = text, now
        line = f"      {text[:70]} ({now - self.started:.0f} s)"
        print(f"\r{line:<90}" if on_terminal else line, end="" if on_terminal else "\n", flush=True)

    def close(self) -> None:
        if self.shown and sys.stdout.isatty():
            print("\r" + " " * 90 + "\r", end="", flush=True)


def run(
    command: Sequence[str | Path],
    log: Path,
    progress: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a command to its end; matches of the regular expression `progress` are its progress.

    Raises Failed with the end of the output and the path of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    pattern = re.compile(progress)
    tail: deque[str] = deque(maxlen=_SHOWN_ON_FAILURE)
    ticker = Ticker()
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=None if env is None else dict(env),
            cwd=cwd,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                tail.append(line)
                if found := pattern.search(line):
                    ticker.show(found.group().strip())
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            ticker.close()
    if code != 0:
        name = Path(command[0]).name
        raise Failed(f"{name} failed (exit code {code}):\n{''.join(tail)}The whole log: {log}")


def exit_code(do: Callable[[], None], name: str = "setup") -> int:
    """Do something and say what stopped it, and whom: 0, 1 for a failure, 130 for Ctrl-C."""
    try:
        do()
    except Failed as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; run it again to go on.", file=sys.stderr)
        return 130
    return 0
