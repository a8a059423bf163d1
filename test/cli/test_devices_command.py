"""`ros2 run edge_vlm_ros devices`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from edge_vlm_ros.cli import devices
from edge_vlm_ros.engines.devices import DeviceInfo
from edge_vlm_ros.engines.rpc_server import RpcServer


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    server = RpcServer(n_threads=1)
    yield server
    server.close()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_vlm_ros.cli.devices", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_cpu_is_listed_with_its_memory() -> None:
    ended = run()
    assert ended.returncode == 0, ended.stderr
    head, *rows = ended.stdout.splitlines()
    assert head.split() == ["NAME", "KIND", "DESCRIPTION", "FREE", "TOTAL"]
    [cpu] = [row for row in rows if row.startswith("CPU ")]
    assert cpu.split()[1] == "cpu" and cpu.endswith(" GiB")


def test_a_server_is_asked_too(server: RpcServer) -> None:
    ended = run("--rpc", server.endpoint)
    assert ended.returncode == 0, ended.stderr
    assert f"rpc:{server.endpoint} " in ended.stdout.splitlines()[-1]
    assert server.alive


def test_what_cannot_be_asked_is_told_and_the_rest_is_listed(server: RpcServer) -> None:
    ended = run("--rpc", "10.0.0.5:5000", "--rpc", "localhost", "--rpc", server.endpoint)
    assert ended.returncode == 1
    errors = ended.stderr.splitlines()
    assert "no authentication and no encryption" in errors[0]
    assert "use <host>:<port>" in errors[1]
    assert len(errors) == 2
    assert f"rpc:{server.endpoint} " in ended.stdout
    assert "CPU " in ended.stdout


def test_the_remote_rule_can_be_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def fake(endpoint: str, *, allow_remote: bool) -> tuple[DeviceInfo, ...]:
        asked.append((endpoint, allow_remote))
        return (DeviceInfo("RPC0", "far away", "gpu", 2**30, 3 * 2**29),)

    monkeypatch.setattr(devices, "list_server_devices", fake)
    monkeypatch.setattr(sys, "argv", ["devices", "--rpc", "10.0.0.5:50", "--allow-remote"])
    assert devices.main() == 0
    assert asked == [("10.0.0.5:50", True)]


def test_the_columns_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    devices._print_table([("NAME", "KIND"), ("rpc:somewhere:1", "gpu")])
    head, row = capsys.readouterr().out.splitlines()
    assert head.index("KIND") == row.index("gpu")
