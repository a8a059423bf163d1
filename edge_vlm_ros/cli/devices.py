"""`ros2 run edge_vlm_ros devices`: what engines can compute on."""

from __future__ import annotations

import argparse
import sys

from edge_vlm_ros.engines.devices import DeviceInfo, list_devices, list_server_devices
from edge_vlm_ros.engines.errors import DeviceError

_EPILOG = """Any name in the first column can be an engine's device. So can cpu, vulkan:<n> and
cuda:<n> (Vulkan<n> and CUDA<n>), rpc (a process of our own beside the node) and
rpc:<host>:<port>."""


def main() -> int:
    arguments = _parser().parse_args()
    rows = [_row(info.name, info) for info in list_devices()]
    failed = False
    for endpoint in arguments.rpc:
        try:
            devices = list_server_devices(endpoint, allow_remote=arguments.allow_remote)
        except (ValueError, DeviceError) as error:
            print(f"devices: {error}", file=sys.stderr)
            failed = True
        else:
            rows += [_row(f"rpc:{endpoint}", info) for info in devices]
    _print_table([("NAME", "KIND", "DESCRIPTION", "FREE", "TOTAL"), *rows])
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ros2 run edge_vlm_ros devices",
        description="List the devices that language engines can use, with their memory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rpc",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="ask this RPC server of llama.cpp too; repeatable",
    )
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        help="also a server on another computer, whose protocol has no authentication and no "
        "encryption",
    )
    return parser


def _row(name: str, info: DeviceInfo) -> tuple[str, ...]:
    free, total = (f"{n / 2**30:.1f} GiB" for n in (info.memory_free, info.memory_total))
    return name, info.kind, info.description, free, total


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    sys.exit(main())
