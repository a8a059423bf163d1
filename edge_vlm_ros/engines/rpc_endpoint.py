"""Is there an RPC server? Asked over a socket of our own: llama.cpp aborts when there is none."""

from __future__ import annotations

import socket
import struct

from .errors import DeviceError

# The first message of llama.cpp's RPC protocol: a command, the size of what follows, which
# transports the client knows (none but TCP).
_HELLO = 14
_CAPABILITIES = bytes(24)
_REQUEST = struct.pack("<BQ", _HELLO, len(_CAPABILITIES)) + _CAPABILITIES
_REPLY = struct.Struct("<Q3Bx24s")
_MAJOR, _MINOR = 7, 0


def check_server(endpoint: str, timeout_s: float) -> None:
    """Make sure that an RPC server of llama.cpp's version answers at ``host:port`` now.

    Raises DeviceError with what was wrong.
    """
    try:
        with _connect(endpoint, timeout_s) as connection:
            connection.sendall(_REQUEST)
            reply = _receive(connection, _REPLY.size)
    except TimeoutError:
        raise DeviceError(
            f"the RPC server {endpoint} does not answer within {timeout_s:.0f} s. A server serves "
            "one client at a time: is it in use?"
        ) from None
    except OSError as error:
        raise DeviceError(f"there is no RPC server at {endpoint}: {error}") from error
    size, major, minor, patch, _ = _REPLY.unpack(reply) if len(reply) == _REPLY.size else [0] * 5
    if size != _REPLY.size - 8:
        raise DeviceError(f"what answers at {endpoint} is no RPC server of llama.cpp")
    if major != _MAJOR or minor > _MINOR:
        raise DeviceError(
            f"the RPC server {endpoint} speaks version {major}.{minor}.{patch} of the protocol, "
            f"this llama.cpp {_MAJOR}.{_MINOR}: run the same llama.cpp on both computers"
        )


def refuses_connections(endpoint: str) -> bool:
    """Whether surely nothing serves ``host:port``. A busy server is not lost, nor a silent host."""
    try:
        _connect(endpoint, 1.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _connect(endpoint: str, timeout_s: float) -> socket.socket:
    host, _, port = endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s)


def _receive(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        chunk = connection.recv(n - len(data))
        if not chunk:
            break
        data += chunk
    return data
