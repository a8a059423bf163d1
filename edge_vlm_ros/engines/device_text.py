"""What a user may write where a device is asked for."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

_NUMBERED = re.compile(r"(vulkan|cuda):(\d+)\Z")
_GGML_PREFIX = {"vulkan": "Vulkan", "cuda": "CUDA"}
_FORMS = (
    "cpu, vulkan:<n>, cuda:<n>, rpc, rpc:<host>:<port>, or a name that "
    "`ros2 run edge_vlm_ros devices` lists"
)


@dataclass(frozen=True)
class DeviceText:
    """A device as it was asked for.

    ``name`` is ggml's, for kind ``local``. ``endpoint`` is ``host:port``, for kind ``rpc_server``.
    """

    text: str
    kind: Literal["cpu", "local", "rpc_own", "rpc_server"]
    name: str = ""
    endpoint: str = ""


def parse_device(text: str, *, allow_remote: bool = False) -> DeviceText:
    """What ``text`` asks for. Whether there is such a device is not looked up.

    Raises ValueError for a text that means nothing, and for a server on another computer without
    ``allow_remote``.
    """
    numbered = _NUMBERED.match(text)
    if text == "cpu":
        return DeviceText(text, "cpu")
    if text == "rpc":
        return DeviceText(text, "rpc_own")
    if text.startswith("rpc:"):
        endpoint = parse_endpoint(text.removeprefix("rpc:"), allow_remote=allow_remote)
        return DeviceText(text, "rpc_server", endpoint=endpoint)
    if numbered:
        return DeviceText(text, "local", name=f"{_GGML_PREFIX[numbered[1]]}{int(numbered[2])}")
    if not text or ":" in text or text.split() != [text]:
        raise ValueError(f"device {text!r}: use {_FORMS}")
    return DeviceText(text, "local", name=text)


def parse_endpoint(text: str, *, allow_remote: bool = False) -> str:
    """``host:port`` of an RPC server as ggml wants it. Raises ValueError as parse_device does."""
    host, _, port = text.rpartition(":")
    if not host or ":" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            f"{text!r} is no RPC server: use <host>:<port>, a name or IPv4 address and a number"
        )
    if not allow_remote and not is_loopback(host):
        raise ValueError(
            f"the RPC server {text} is not on this computer. Its protocol has no authentication "
            "and no encryption: whoever reaches the server or the network in between can read and "
            "change all it computes, camera contexts included. Set allow_remote to use it all the "
            "same"
        )
    return f"{host}:{int(port)}"


def is_loopback(host: str) -> bool:
    """Whether a host is surely this computer; names other than localhost are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
