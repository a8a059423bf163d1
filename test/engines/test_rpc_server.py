"""The process of a second engine: how it starts, and that it always ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_vlm_ros.engines import rpc_server
from edge_vlm_ros.engines.errors import DeviceError
from edge_vlm_ros.engines.rpc_endpoint import check_server, refuses_connections
from edge_vlm_ros.engines.rpc_server import RpcServer

PARENT = """
import sys, time
from edge_vlm_ros.engines.rpc_server import RpcServer
server = RpcServer(n_threads=1)
print(server.pid, server.endpoint, flush=True)
{then}
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.02)


def exists(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def test_life() -> None:
    server = RpcServer(n_threads=1)
    assert server.alive and exists(server.pid)
    check_server(server.endpoint, 10)
    server.close()
    assert not server.alive and not exists(server.pid)
    assert refuses_connections(server.endpoint)
    server.close()  # again changes nothing


def test_it_ends_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(then="time.sleep(1000)")],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        assert exists(pid)
        parent.kill()
    wait_until(lambda: not exists(pid), "the server outlives a parent that was killed")


@pytest.mark.parametrize("then", ["", "raise SystemExit(3)", "import os; os._exit(0)"])
def test_it_ends_when_nobody_closes_it(then: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARENT.format(then=then)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    pid = int(ended.stdout.split()[0])
    wait_until(lambda: not exists(pid), "the server outlives its parent")


def test_the_thread_that_started_it_may_end() -> None:
    """The server belongs to the process: engines are loaded by threads that do not stay."""
    code = """
import threading, time
from edge_vlm_ros.engines.rpc_server import RpcServer
made = []
thread = threading.Thread(target=lambda: made.append(RpcServer(n_threads=1)))
thread.start(); thread.join()
time.sleep(0.5)
print(made[0].alive)
made[0].close()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "True\n", ended.stderr


def test_ctrl_c_does_not_reach_it() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit SIG_IGN
    server = RpcServer(n_threads=1)
    signal.signal(signal.SIGINT, before)
    status = Path(f"/proc/{server.pid}/status").read_text()
    [ignored] = [int(line[7:], 16) for line in status.splitlines() if line.startswith("SigIgn:")]
    assert ignored & 1 << (signal.SIGINT - 1)
    os.kill(server.pid, signal.SIGINT)
    check_server(server.endpoint, 10)
    assert server.alive
    assert os.getpgid(server.pid) != os.getpgid(0)  # nor does what is sent to our group
    server.close()


def test_it_keeps_to_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    server = RpcServer(cpus=(core,))
    assert os.sched_getaffinity(server.pid) == {core}
    server.close()


def test_a_server_that_cannot_start_says_why() -> None:
    before = set(rpc_server._used_ports)
    with pytest.raises(DeviceError, match=r"exit code 1 at once: .*OSError.*Invalid argument"):
        RpcServer(cpus=(1000,))
    assert len(rpc_server._used_ports - before) == 1  # another port would not have helped


def test_a_port_that_somebody_else_took(monkeypatch: pytest.MonkeyPatch) -> None:
    other = RpcServer(n_threads=1)
    taken = int(other.endpoint.partition(":")[2])
    fresh = rpc_server._fresh_port
    ports = [taken]
    monkeypatch.setattr(rpc_server, "_fresh_port", lambda: ports.pop() if ports else fresh())
    server = RpcServer(n_threads=1)
    assert server.alive and not ports
    assert server.endpoint != other.endpoint
    server.close()
    other.close()


def test_every_start_has_a_port_of_its_own() -> None:
    """llama.cpp remembers connections by endpoint, broken ones too."""
    ports = {rpc_server._fresh_port() for _ in range(50)}
    assert len(ports) == 50
    assert ports <= rpc_server._used_ports
