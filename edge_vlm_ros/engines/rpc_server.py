"""A second engine on any computer: a process that serves its CPU through llama.cpp's RPC backend.

It has its own weights and KV cache and is reached through tensor reads and writes only. The
protocol has no authentication; the server listens on 127.0.0.1 and serves one client at a time, so
once connected to it is closed to everybody else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import psutil

from . import ggml
from .affinity import pin_thread
from .errors import DeviceError
from .rpc_endpoint import check_server

_START_TIMEOUT_S = 60.0
_ATTEMPTS = 3
_KEPT_LINES = 20
# ggml keeps a connection for each endpoint. That of a server that died is of no use any more, so
# its port must not come again.
_used_ports: set[int] = set()
_ports_lock = threading.Lock()


class RpcServer:
    """A server process, started by the constructor, which returns when it answers.

    ``cpus`` are the cores it is pinned to, all if empty; ``n_threads`` 0 is one per core. The
    process ends when ``close`` is called or when this process ends, however that ends; Ctrl-C in
    the terminal does not reach it. Raises DeviceError with the last lines it wrote.
    """

    def __init__(self, *, cpus: Sequence[int] = (), n_threads: int = 0) -> None:
        for attempt in range(_ATTEMPTS):
            self.endpoint = f"127.0.0.1:{_fresh_port()}"
            self._start(cpus, n_threads or len(cpus) or len(os.sched_getaffinity(0)))
            try:
                self._wait_until_it_answers()
                return
            except DeviceError:
                self.close()
                # Somebody else may have taken the port.
                if attempt + 1 == _ATTEMPTS or not self._port_was_taken():
                    raise
            except BaseException:
                self.close()
                raise

    def _start(self, cpus: Sequence[int], n_threads: int) -> None:
        command = [sys.executable, "-m", __name__, "--serve", self.endpoint]
        command += ["--threads", str(n_threads), "--cpus", ",".join(map(str, cpus))]
        root = str(Path(__file__).absolute().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end is how the server learns of ours
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "GGML_NO_BACKTRACE": "1"},
            start_new_session=True,  # out of reach of Ctrl-C from the first instant on
        )
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._read_stderr, name="rpc-server", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def last_lines(self) -> str:
        """What the server wrote last, for an error message."""
        return "; ".join(self._lines) or "it wrote nothing"

    def close(self) -> None:
        """End the server. Closing again changes nothing."""
        self._process.kill()  # it holds nothing that would have to be put in order
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._reader.join()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._lines.append(line.decode("utf-8", "replace").rstrip())

    def _wait_until_it_answers(self) -> None:
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        # What answers at the port may be another's server as long as ours does not listen.
        while not self._listens():
            if not self.alive:
                code = self._process.wait()
                self._reader.join()
                raise DeviceError(
                    f"the RPC server ended with exit code {code} at once: {self.last_lines()}"
                )
            if time.monotonic() > give_up_at:
                raise DeviceError(
                    f"the RPC server does not listen within {_START_TIMEOUT_S:.0f} s: "
                    f"{self.last_lines()}"
                )
            time.sleep(0.02)
        check_server(self.endpoint, _START_TIMEOUT_S)

    def _listens(self) -> bool:
        try:
            sockets = psutil.Process(self.pid).net_connections("tcp4")
        except psutil.Error:
            return False
        port = int(self.endpoint.rpartition(":")[2])
        return any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets)

    def _port_was_taken(self) -> bool:
        return "server socket" in self.last_lines()


def _fresh_port() -> int:
    with _ports_lock:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            if port not in _used_ports:
                _used_ports.add(port)
                return port


# ------------------------------------------------------------------------- the server process
def serve(endpoint: str, n_threads: int) -> None:
    """Serve the CPU of this process; returns only when that is not possible."""
    device = ggml.core().ggml_backend_dev_by_type(ggml.CPU_TYPE)
    devices = ggml.address_array([device])
    ggml.rpc().ggml_backend_rpc_start_server(
        endpoint.encode(), None, n_threads, len(devices), devices
    )


def _end_with_parent() -> None:
    """Leave when standard input ends, which the kernel sees to when the parent ends."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Started by RpcServer.")
    parser.add_argument("--serve", required=True, metavar="HOST:PORT")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cpus", required=True, help="cores, separated by commas; may be empty")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pin_thread(int(cpu) for cpu in arguments.cpus.split(",") if cpu)
    serve(arguments.serve, arguments.threads)
    return 1


if __name__ == "__main__":
    sys.exit(main())
