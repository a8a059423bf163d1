"""The example of the README runs as it stands, and is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from helpers import PATIENCE_S, ROOT

EXAMPLE = ROOT / "docs" / "examples" / "ask_without_ros.py"


def test_ask_without_ros(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 30
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    answers = re.findall(r"^Answer: (.+)$", run.stdout, re.MULTILINE)
    truths = re.findall(r"^Truth: (.+)$", run.stdout, re.MULTILINE)
    assert len(answers) == 3 and answers == truths
    assert run.stdout.count("6 frames, first token after") == 3
    assert "rclpy" not in EXAMPLE.read_text() and run.stderr == ""


def test_importing_the_runtime_needs_no_ros() -> None:
    code = "import sys, edge_vlm_ros.runtime; sys.exit('rclpy' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert run.returncode == 0
