"""The devices that engines compute on: found with ggml's device API, opened by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psutil

from . import ggml, native_abort
from .device_text import parse_device, parse_endpoint
from .errors import DeviceError, NativeAbortError
from .ggml import DeviceInfo
from .rpc_endpoint import check_server, refuses_connections
from .rpc_server import RpcServer

__all__ = ["CPU", "Device", "DeviceInfo", "list_devices", "list_server_devices", "open_device"]

_T = TypeVar("_T")
_ANSWERS_WITHIN_S = 10.0

_lock = threading.Lock()
_open_endpoints: set[str] = set()
_lost_endpoints: set[str] = set()
_with_context: set[str] = set()
_rpc_is_stuck = ""


@dataclass(frozen=True, eq=False)
class Device:
    """A device that models can be loaded onto.

    ``text`` is what it was asked for with, ``name`` and ``handle`` are ggml's; the CPU has no
    handle. ``endpoint`` is the ``host:port`` of an RPC server; each open one has one Device.

    Any number of contexts may share a model on the CPU or a CUDA device, but there is one context
    at a time on an RPC or Vulkan device. llama.cpp's RPC client keeps one "last graph" for each
    device: contexts that decode at the same time make the server compute the graph of one with the
    tensors of the other, which ends the server or, worse, does not.

    A lost RPC server takes with it all that was on it. Its models and contexts are abandoned:
    freeing them would never return (their ``close`` methods see to that). A server of our own is
    replaced by opening ``rpc`` again, which starts another on another port. ``rpc:<host>:<port>``
    cannot be opened a second time in the same process after a loss, even if the server is back.
    """

    text: str
    name: str
    kind: str
    handle: int | None = None
    endpoint: str = ""
    server: RpcServer | None = None
    connection: int | None = None

    @property
    def is_cpu(self) -> bool:
        return self.handle is None

    def is_lost(self) -> bool:
        """Whether nothing on this device can be used any more. Always False for local devices.

        An external server is asked with a connection, which waits in its short queue: once in a
        while, not once a second. A host that has fallen silent does not count as lost.
        """
        if not self.endpoint:
            return False
        if self.endpoint in _lost_endpoints or native_abort.aborted(self.endpoint):
            return True
        return self._server_is_gone()

    def reserve_context(self) -> None:
        """Take the one context that this device may have. Raises DeviceError when it is taken."""
        if not self._has_one_context:
            return
        with _lock:
            if self._key in _with_context:
                raise DeviceError(
                    f"device {self.text} has an engine already: one engine is possible on each "
                    "RPC or Vulkan device. Several engines can have device rpc: each starts a "
                    "server of its own"
                )
            _with_context.add(self._key)

    def release_context(self) -> None:
        with _lock:
            _with_context.discard(self._key)

    @property
    def _key(self) -> str:
        return self.endpoint or self.name

    @property
    def _has_one_context(self) -> bool:
        return bool(self.endpoint) or self.name.startswith("Vulkan")

    def call(self, function: Callable[[], _T]) -> _T:
        """Call native code that works with this device and may not return when it is lost.

        With an RPC server the call is made in a thread of its own. Raises what
        ``function`` raises, or NativeAbortError when the server is lost.
        """
        if not self.endpoint:
            return function()
        return native_abort.run_guarded(function, self.endpoint, self._server_is_gone)

    def give_up(self) -> None:
        """Regard the device as lost: a native call on it does not return."""
        if self.endpoint:
            with _lock:
                _lost_endpoints.add(self.endpoint)
        if self.server is not None:
            self.server.close()

    def wait_for_server(self) -> None:
        """Wait until an RPC server has carried out what it was sent; nothing for other devices.

        llama.cpp sends graphs without waiting, and its RPC backend cannot synchronise: the answer
        to a question about the device comes when the server has come to it.
        """
        if self.endpoint and self.handle is not None:
            ggml.describe(self.handle)

    def memory_free(self) -> int:
        """Bytes that can be allocated on the device now; 0 when it does not say."""
        if self.handle is None:
            return int(psutil.virtual_memory().available)
        handle = self.handle
        return self.call(lambda: ggml.describe(handle)).memory_free

    def close(self) -> None:
        """End the connection, and the server if it is our own. Everything on the device must be
        closed before. Closing again changes nothing."""
        if not self.endpoint:
            return
        lost = self.is_lost()
        with _lock:
            if self.endpoint not in _open_endpoints:
                return
            _open_endpoints.remove(self.endpoint)
            if lost:
                _lost_endpoints.add(self.endpoint)
        if not lost:
            ggml.base().ggml_backend_free(self.connection)
        if self.server is not None:
            self.server.close()

    def _server_is_gone(self) -> bool:
        if self.server is not None:
            return not self.server.alive
        return refuses_connections(self.endpoint)


CPU = Device(text="cpu", name="CPU", kind="cpu")


def list_devices() -> tuple[DeviceInfo, ...]:
    """All devices of this computer that llama.cpp can use."""
    return tuple(ggml.describe(handle) for handle in ggml.local_devices())


def list_server_devices(endpoint: str, *, allow_remote: bool = False) -> tuple[DeviceInfo, ...]:
    """The devices of the RPC server ``host:port``. Raises DeviceError, and ValueError as
    parse_device does."""
    endpoint = parse_endpoint(endpoint, allow_remote=allow_remote)
    handles, connection = _connect(endpoint, None)
    device = Device(endpoint, "", "rpc", handles[0], endpoint, connection=connection)
    try:
        return device.call(lambda: tuple(ggml.describe(handle) for handle in handles))
    except NativeAbortError as error:
        raise DeviceError(f"the RPC server {endpoint} ended while it was asked") from error
    finally:
        device.close()


def open_device(
    text: str, *, allow_remote: bool = False, cpus: Sequence[int] = (), n_threads: int = 0
) -> Device:
    """The device that ``text`` names: see parse_device for what may be written.

    ``cpus`` and ``n_threads`` are for the process that ``rpc`` starts. Raises ValueError as
    parse_device does, and DeviceError when there is no such device or it cannot be reached.
    """
    wanted = parse_device(text, allow_remote=allow_remote)
    if wanted.kind == "cpu":
        return CPU
    if wanted.kind == "local":
        return _open_local(text, wanted.name)
    if wanted.kind == "rpc_server":
        return _open_rpc(text, wanted.endpoint, None)
    server = RpcServer(cpus=cpus, n_threads=n_threads)
    try:
        return _open_rpc(text, server.endpoint, server)
    except BaseException:
        server.close()
        raise


def _open_local(text: str, name: str) -> Device:
    for handle in ggml.local_devices():
        info = ggml.describe(handle)
        if info.name == name and info.kind == "cpu":
            return CPU
        if info.name == name:
            return Device(text, name, info.kind, handle)
    names = ", ".join(info.name for info in list_devices())
    raise DeviceError(
        f"there is no device {text!r} ({name}): llama.cpp has {names} here. Another backend needs "
        "a llama-cpp-python that was built with it"
    )


def _open_rpc(text: str, endpoint: str, server: RpcServer | None) -> Device:
    handles, connection = _connect(endpoint, server)
    name = ggml.name_of(handles[0])
    return Device(text, name, "rpc", handles[0], endpoint, server, connection)


def _connect(endpoint: str, server: RpcServer | None) -> tuple[tuple[int, ...], int]:
    """The devices of a server, and a connection that llama.cpp uses as long as it is kept."""
    global _rpc_is_stuck
    _claim(endpoint)
    try:
        check_server(endpoint, _ANSWERS_WITHIN_S)
        return native_abort.run_guarded(lambda: _add_server(endpoint), endpoint)
    except NativeAbortError as error:
        # llama.cpp aborts here with a lock held that all its RPC connections need.
        _rpc_is_stuck = f"the connection to {endpoint} broke while it was made ({error})"
        raise DeviceError(f"{_rpc_is_stuck}. {_RESTART}") from error
    except BaseException:
        with _lock:
            _open_endpoints.discard(endpoint)
        raise


_RESTART = "This process can make no RPC connection any more: restart it"


def _claim(endpoint: str) -> None:
    with _lock:
        if _rpc_is_stuck:
            raise DeviceError(f"{_rpc_is_stuck}. {_RESTART}")
        if endpoint in _lost_endpoints or native_abort.aborted(endpoint):
            raise DeviceError(
                f"the RPC server {endpoint} was lost, and llama.cpp cannot connect to the same "
                "address again: restart this process, or the server on another port"
            )
        if endpoint in _open_endpoints:
            raise DeviceError(
                f"the RPC server {endpoint} is open in this process already: engines on one server "
                "share one Device"
            )
        _open_endpoints.add(endpoint)


def _add_server(endpoint: str) -> tuple[tuple[int, ...], int]:
    registry = ggml.rpc().ggml_backend_rpc_add_server(endpoint.encode())
    if not registry:
        raise DeviceError(f"the RPC server {endpoint} offers no device")
    library = ggml.base()
    n = library.ggml_backend_reg_dev_count(registry)
    handles = tuple(library.ggml_backend_reg_dev_get(registry, index) for index in range(n))
    return handles, ggml.rpc().ggml_backend_rpc_init(endpoint.encode(), 0)
