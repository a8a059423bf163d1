"""What engines might cost when nobody has measured them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edge_vlm_ros.engines.protocol import EngineStatus

from .costs import CostModel, EngineCosts, MoveCost, RowCost, even_batches


@dataclass(frozen=True)
class _Device:
    bytes_s: float
    """Read from memory."""
    operations_s: float


_PROCESSOR = _Device(bytes_s=10e9, operations_s=1e11)
_ACCELERATOR = _Device(bytes_s=200e9, operations_s=5e12)
_STEP_S = 2e-4
"""Of every step, on any device."""
_MOVE = MoveCost(fixed_s=1e-3, byte_s=1e-9)
_FORK_S = 1e-4
_ENCODE_S = 0.1


def rough_costs(engines: Iterable[EngineStatus], encoders: Iterable[str] = ()) -> CostModel:
    """A guess from sizes alone, within a factor of ten or so: enough for a learner to begin with.

    A step reads all weights once and does two operations for each weight (taken as one byte each)
    and row; attention reads the KV of the history for every row of a decode step, and does four
    operations for each byte of it and row. A processor is taken to read 10 GB/s and to do 100
    billion operations a second, anything but ``cpu`` and ``rpc`` 200 GB/s and 5 trillion. KV moves
    at 1 GB/s, an encoder takes 0.1 s a frame, and nothing slows down anything else.
    """
    return CostModel(
        {status.name: _rough(status) for status in engines},
        {encoder: _ENCODE_S for encoder in encoders},
    )


def _rough(status: EngineStatus) -> EngineCosts:
    host = status.device == "cpu" or status.device.startswith("rpc")
    device = _PROCESSOR if host else _ACCELERATOR
    weights = status.memory_weights_bytes
    cell = status.memory_kv_bytes / max(1, status.cells)
    fixed = _STEP_S + weights / device.bytes_s
    row = 2 * weights / device.operations_s
    return EngineCosts(
        prefill=RowCost(fixed, row, 4 * cell / device.operations_s),
        decode=even_batches(fixed, row, cell / device.bytes_s),
        export=_MOVE,
        import_=_MOVE,
        fork_s=_FORK_S,
    )
