"""What dashboards are told of an engine that has not worked yet."""

from __future__ import annotations

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.placement.residency import ResidencyTable
from edge_vlm_ros.runtime.engine_slots import EngineSlots
from edge_vlm_ros.runtime.readings import read_engines


def test_an_engine_that_never_worked_has_zeros_of_the_right_kind() -> None:
    """A whole number where a message has a floating-point field aborts the process."""
    slots = EngineSlots([EngineConfig(name="far")], lambda config, emit: None, print, 1.0, 1.0)  # type: ignore[arg-type,return-value]
    slots.failed("far", "its server ended", 5.0)
    (reading,) = read_engines(slots, ResidencyTable(), 5.5)
    assert (reading.state, reading.error, reading.retry_in_s) == (
        "failed",
        "its server ended",
        0.5,
    )
    for name, field in EngineStatus.__dataclass_fields__.items():
        kinds = {"float": float, "int": int, "str": str, "bool": bool}
        assert type(getattr(reading.status, name)) is kinds[str(field.type)], name
