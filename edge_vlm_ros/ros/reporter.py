"""Publishes the state of everything at a fixed period: status topics and /diagnostics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from edge_vlm_ros.msg import EngineStatus as EngineStatusMessage
from edge_vlm_ros.runtime import NotActiveError, Runtime
from edge_vlm_ros.runtime.status import EngineReading

from .convert import (
    engine_status_message,
    loading_engine_message,
    placement_message,
    planning_message,
    stream_status_message,
)
from .diagnostics import (
    CameraState,
    FrameCounts,
    NodeState,
    Report,
    caches_report,
    encoder_report,
    engine_report,
    is_silent,
    loading_engine_report,
    node_report,
    placement_report,
    planning_report,
    stream_report,
    to_message,
)
from .publishers import Publishers
from .streams import CameraSubscription


class Reported(Protocol):
    """What is reported on: the node."""

    @property
    def runtime(self) -> Runtime | None:
        """The loaded runtime, or None."""
        ...

    @property
    def cameras(self) -> Sequence[CameraSubscription]: ...

    @property
    def engine_names(self) -> tuple[str, ...]:
        """Of the configured engines, loaded or not."""
        ...

    @property
    def active_since(self) -> float | None:
        """time.monotonic() of the activation, None while not active."""
        ...

    def state(self) -> NodeState: ...

    def silent_timeout(self) -> float: ...


@dataclass
class _Busy:
    """Share of time an engine is busy, between two readings."""

    read_at: float = field(default_factory=time.monotonic)
    busy_s: float = 0.0

    def share(self, busy_s: float) -> float:
        now = time.monotonic()
        share = (busy_s - self.busy_s) / max(now - self.read_at, 1e-3)
        self.read_at, self.busy_s = now, busy_s
        return min(max(share, 0.0), 1.0)


class Reporter:
    """Owns the two timers. They run on the steady clock: simulated time may stand still."""

    def __init__(
        self,
        node: Node,
        reported: Reported,
        publishers: Publishers,
        hardware_id: str,
        diagnostics_period: float,
        status_period: float,
    ) -> None:
        self._reported = reported
        self._publishers = publishers
        self._node_name = node.get_name()
        self._hardware_id = hardware_id
        self._frames_before: dict[str, FrameCounts] = {}
        self._busy: dict[tuple[str, str], _Busy] = {}
        clock = Clock(clock_type=ClockType.STEADY_TIME)
        group = MutuallyExclusiveCallbackGroup()
        for period, publish in (
            (diagnostics_period, self.publish_diagnostics),
            (status_period, self.publish_status),
        ):
            node.create_timer(period, _unless_closing(publish), group, clock)

    def forget(self) -> None:
        """Start counting anew: the runtime is another one."""
        self._frames_before.clear()
        self._busy.clear()

    # -------------------------------------------------------------------- status topics
    def publish_status(self) -> None:
        runtime = self._reported.runtime
        if runtime is not None:
            header = self._publishers.header()
            for stream, publisher in self._publishers.streams.copy().items():
                publisher.publish(stream_status_message(runtime.stream_status(stream), header))
            self._publishers.placement.publish(
                placement_message(runtime.placement_status(), header)
            )
            self._publishers.planning.publish(planning_message(runtime.planning_status(), header))
        for message in self.engine_messages("status"):
            publisher = self._publishers.engines.get(message.engine)
            if publisher is not None:
                publisher.publish(message)

    def engine_messages(self, reader: str) -> list[EngineStatusMessage]:
        """The status of all engines. ``reader`` says who asks: ``busy`` is since its last call."""
        header = self._publishers.header()
        runtime = self._reported.runtime
        if runtime is None:
            state = self._reported.state()
            if not state.loading:
                return []
            return [
                loading_engine_message(name, state.model, header)
                for name in self._reported.engine_names
            ]
        embeddings = runtime.vision_status().cache.bytes
        snapshots = runtime.placement_status().snapshot_bytes
        return [
            engine_status_message(
                reading, header, self._busy_share(reader, reading), embeddings, snapshots
            )
            for reading in runtime.engine_status()
        ]

    # -------------------------------------------------------------------- diagnostics
    def publish_diagnostics(self) -> None:
        message = DiagnosticArray(header=self._publishers.header())
        message.status = [
            to_message(report, self._node_name, self._hardware_id) for report in self._reports()
        ]
        self._publishers.diagnostics.publish(message)

    def _reports(self) -> list[Report]:
        runtime = self._reported.runtime
        state = self._reported.state()
        if runtime is None:
            reports = [node_report(state, None)]
            if state.loading:
                reports += [
                    loading_engine_report(name, state.loading)
                    for name in self._reported.engine_names
                ]
            return reports
        vision = runtime.vision_status()
        return [
            node_report(state, runtime.question_status()),
            *(self._stream_report(runtime, camera) for camera in self._reported.cameras),
            *(
                engine_report(reading, self._busy_share("diagnostics", reading))
                for reading in runtime.engine_status()
            ),
            placement_report(runtime.placement_status()),
            planning_report(runtime.planning_status()),
            encoder_report(vision),
            caches_report(vision),
        ]

    def _stream_report(self, runtime: Runtime, subscription: CameraSubscription) -> Report:
        stream = subscription.settings.stream
        status = runtime.stream_status(stream)
        since = self._reported.active_since
        camera = CameraState(
            topic=subscription.topic,
            watched_s=None if since is None else time.monotonic() - since,
            silent_timeout_s=self._reported.silent_timeout(),
        )
        if is_silent(status, camera):
            camera = CameraState(
                camera.topic, camera.watched_s, camera.silent_timeout_s, subscription.why_silent()
            )
        before = self._frames_before.get(stream, FrameCounts())
        self._frames_before[stream] = FrameCounts.of(status)
        return stream_report(status, before, camera)

    def _busy_share(self, reader: str, reading: EngineReading) -> float:
        status = reading.status
        return self._busy.setdefault((reader, status.name), _Busy()).share(status.busy_s)


def _unless_closing(publish: Callable[[], None]) -> Callable[[], None]:
    """The runtime may be closed while its state is being read: that is no error."""

    def quietly() -> None:
        # A transition that frees the runtime runs in another thread.
        with suppress(NotActiveError):
            publish()

    return quietly
