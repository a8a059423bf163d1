"""Naming, finding and opening devices."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from abort_cases import MODEL, context_on, greedy

from edge_vlm_ros.engines import devices, rpc_endpoint
from edge_vlm_ros.engines.device_text import DeviceText, parse_device
from edge_vlm_ros.engines.devices import CPU, Device, list_devices, list_server_devices, open_device
from edge_vlm_ros.engines.errors import DeviceError
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.rpc_server import RpcServer

HELLO_REPLY = struct.Struct("<Q3Bx24s")


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The endpoint of something that answers all clients with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(64)
                    client.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server() -> Iterator[RpcServer]:
    """One that runs already, as far as the code under test knows."""
    server = RpcServer(n_threads=1)
    yield server
    server.close()


# -------------------------------------------------------------------------------- texts
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", DeviceText("cpu", "cpu")),
        ("vulkan:0", DeviceText("vulkan:0", "local", "Vulkan0")),
        ("cuda:12", DeviceText("cuda:12", "local", "CUDA12")),
        ("RKNPU2", DeviceText("RKNPU2", "local", "RKNPU2")),
        ("rpc", DeviceText("rpc", "rpc_own")),
        ("rpc:localhost:5", DeviceText("rpc:localhost:5", "rpc_server", "", "localhost:5")),
        (
            "rpc:127.1.2.3:65535",
            DeviceText(*["rpc:127.1.2.3:65535", "rpc_server"], "", "127.1.2.3:65535"),
        ),
    ],
)
def test_texts(text: str, expected: DeviceText) -> None:
    assert parse_device(text) == expected


@pytest.mark.parametrize(
    "text", ["", " cpu", "two words", "vulkan:", "vulkan:x", "cuda:-1", "gpu:0"]
)
def test_texts_that_mean_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="vulkan:<n>, cuda:<n>, rpc, rpc:<host>:<port>"):
        parse_device(text)


@pytest.mark.parametrize(
    "text",
    [
        "rpc:",
        "rpc:host",
        "rpc:host:",
        "rpc::5",
        "rpc:localhost:0",
        "rpc:localhost:65536",
        "rpc:::1:5",
    ],
)
def test_texts_that_are_no_server(text: str) -> None:
    with pytest.raises(ValueError, match="use <host>:<port>"):
        parse_device(text, allow_remote=True)


@pytest.mark.parametrize("host", ["10.0.0.7", "robot.local", "0.0.0.0", "localhost.example.org"])
def test_another_computer_must_be_allowed(host: str) -> None:
    text = f"rpc:{host}:5000"
    for refuse in (parse_device, open_device):
        with pytest.raises(ValueError, match="no authentication and no encryption.*allow_remote"):
            refuse(text)
    with pytest.raises(ValueError, match="no authentication"):
        list_server_devices(f"{host}:5000")
    assert parse_device(text, allow_remote=True).endpoint == f"{host}:5000"


# -------------------------------------------------------------------------------- local devices
def test_the_cpu_is_listed() -> None:
    [cpu] = [info for info in list_devices() if info.kind == "cpu"]
    assert cpu.name == "CPU"
    assert 0 < cpu.memory_free <= cpu.memory_total
    assert open_device("cpu") is CPU
    assert open_device("CPU") is CPU


@pytest.mark.parametrize(("text", "name"), [("vulkan:7", "Vulkan7"), ("RKNPU2", "RKNPU2")])
def test_a_device_that_is_not_there(text: str, name: str) -> None:
    with pytest.raises(DeviceError, match=rf"no device '{text}' \({name}\): llama.cpp has .*CPU"):
        open_device(text)


# -------------------------------------------------------------------------------- RPC
def test_a_server_of_our_own_computes_what_the_cpu_computes() -> None:
    device = open_device("rpc", n_threads=1)
    assert device.server is not None and device.endpoint == device.server.endpoint
    model, cpu_model = LlamaModel(MODEL, device=device), LlamaModel(MODEL)
    context, cpu_context = context_on(device, model), context_on(CPU, cpu_model)
    assert greedy(context, 30) == greedy(cpu_context, 30)
    for closes in (context, cpu_context, model, cpu_model):
        closes.close()
    assert not device.is_lost()
    device.close()
    assert not device.server.alive
    device.close()  # again changes nothing


def test_one_context_at_a_time_on_a_server() -> None:
    """Two that decode at once end the server, or compute with each other's tensors."""
    device = open_device("rpc", n_threads=1)
    model = LlamaModel(MODEL, device=device)
    first = context_on(device, model)
    with pytest.raises(DeviceError, match="device rpc has an engine already"):
        context_on(device, model)
    first.close()
    second = context_on(device, model)
    greedy(second, 3)
    second.close()
    model.close()
    device.close()


def test_a_server_that_runs_already(server: RpcServer) -> None:
    text = f"rpc:{server.endpoint}"
    for _ in range(2):  # what was closed can be opened again
        device = open_device(text)
        with pytest.raises(DeviceError, match="open in this process already"):
            open_device(text)
        model = LlamaModel(MODEL, device=device)
        context = context_on(device, model)
        assert len(greedy(context, 5)) == 6
        context.close()
        model.close()
        device.close()
        assert server.alive
    [info] = list_server_devices(server.endpoint)
    assert info.description == server.endpoint and info.memory_total > 0


def test_an_external_server_that_went_away_cannot_come_back(server: RpcServer) -> None:
    text = f"rpc:{server.endpoint}"
    device = open_device(text)
    assert not device.is_lost()
    server.close()
    assert device.is_lost()
    device.close()
    with answering(b""):
        with pytest.raises(DeviceError, match="was lost, .* restart this process, or the server"):
            open_device(text)


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    for _ in range(2):
        with pytest.raises(DeviceError, match=f"no RPC server at {endpoint}: .*refused"):
            open_device(f"rpc:{endpoint}")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no RPC server of llama.cpp"),
        (b"x" * 100, "no RPC server of llama.cpp"),
        (b"", "no RPC server of llama.cpp"),
        (HELLO_REPLY.pack(28, 6, 1, 2, b""), r"version 6\.1\.2 of the protocol"),
        (HELLO_REPLY.pack(28, 7, 1, 0, b""), r"version 7\.1\.0 of the protocol"),
    ],
)
def test_something_else_answers(reply: bytes, reason: str) -> None:
    with answering(reply) as endpoint, pytest.raises(DeviceError, match=reason):
        open_device(f"rpc:{endpoint}")


def test_a_busy_server(server: RpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_ANSWERS_WITHIN_S", 0.2)
    host, _, port = server.endpoint.partition(":")
    with socket.create_connection((host, int(port))):
        with pytest.raises(DeviceError, match="one client at a time: is it in use"):
            open_device(f"rpc:{server.endpoint}")
    assert not rpc_endpoint.refuses_connections(server.endpoint)


def test_no_server_process_is_left_when_opening_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[RpcServer] = []

    def refuse(_endpoint: str, _timeout_s: float) -> None:
        raise DeviceError("no")

    class Recorded(RpcServer):
        def __init__(self, **options: object) -> None:
            super().__init__()
            started.append(self)

    monkeypatch.setattr(devices, "RpcServer", Recorded)
    monkeypatch.setattr(devices, "check_server", refuse)
    with pytest.raises(DeviceError, match="no"):
        open_device("rpc")
    assert [server.alive for server in started] == [False]


def test_a_model_that_does_not_load_on_a_server(tmp_path: Path) -> None:
    device = open_device("rpc", n_threads=1)
    path = tmp_path / "broken.gguf"
    path.write_bytes(MODEL.read_bytes()[:5_000_000])
    with pytest.raises(Exception, match="cannot load .*broken.gguf on rpc: .*"):
        LlamaModel(path, device=device)
    LlamaModel(MODEL, device=device).close()
    device.close()


def test_local_devices_are_never_lost() -> None:
    device = Device("vulkan:0", "Vulkan0", "gpu", 1)
    assert not device.is_lost()
    assert device.call(threading.current_thread) is threading.current_thread()
