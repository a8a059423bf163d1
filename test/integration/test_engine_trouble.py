"""Engines that fail or do not fit together, over real ROS 2 with the demo model."""

from __future__ import annotations

import os
import signal

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from edge_vlm_ros.msg import EngineStatus
from harness import TWO_ENGINES, heard, level_of, rpc_servers, values_of, wait_for, world
from test_node import SlowSampler


def test_a_killed_server_costs_no_answer_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = SlowSampler(monkeypatch, token=100)
    with world(**TWO_ENGINES) as made:
        diagnostics = heard(made, DiagnosticArray, "/diagnostics")
        statuses = heard(made, EngineStatus, "/edge_vlm/engines/second/status")
        made.start()
        made.frames("table", 1)
        asked = made.client.ask(engine="second", max_tokens=60)
        asked.wait_state("decoding")
        (server,) = rpc_servers()
        os.kill(server, signal.SIGKILL)
        ended, result = asked.wait_end()
        assert (ended, result.finish_reason) == ("succeeded", "length")
        assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 1)
        assert len(result.token_ids) == 60, "no token is lost or told twice"
        assert result.text.startswith("".join(f.delta for f in asked.feedback))

        def told() -> bool:
            messages = [
                (status.level[0], status.message)
                for array in diagnostics
                for status in array.status
                if status.name == "edge_vlm: engine second"
            ]
            return any(level == 2 and "failed: " in text for level, text in messages)

        wait_for(told, "the error in diagnostics")
        wait_for(lambda: any(s.state == "failed" and s.error for s in statuses), "the status")
        wait_for(lambda: statuses[-1].state == "ready" and statuses[-1].failures == 1, "recovery")
        slow.gate.set()
        again = made.client.ask(engine="second", max_tokens=3)
        assert again.wait_end()[1].metrics.engine == "second"
        assert rpc_servers() != [server]
    logged = capfd.readouterr().err.splitlines()
    for start, text in (
        ("[ERROR]", "]: engine second failed: "),
        ("[WARN]", "]: answer 1 goes on on cpu: "),
        ("[INFO]", "]: engine second works again"),
    ):
        assert sum(line.startswith(start) and text in line for line in logged) == 1, text


def test_engines_that_do_not_fit_together_are_told_of_and_replay(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with world(**TWO_ENGINES, engine__second__kv_type="f16") as made:
        diagnostics = heard(made, DiagnosticArray, "/diagnostics")
        made.start()
        made.frames("table", 1)
        level, text = wait_for(
            lambda: level_of(diagnostics, "edge_vlm: placement"), "the state of the placement"
        )
        assert level == 1
        assert "cpu -> second, second -> cpu" in text and "replay is used" in text
        matrix = wait_for(lambda: values_of(diagnostics, "edge_vlm: placement"), "the matrix")
        assert matrix["cpu -> second"].startswith("incompatible: ")
        assert "kv" in matrix["cpu -> second"].lower()
        ended, result = made.client.ask(engine="second").wait_end()
        assert (ended, result.metrics.path) == ("succeeded", "replay")
    logged = capfd.readouterr().err.splitlines()
    assert sum("cannot import from engine" in line for line in logged) == 2, "once a direction"
