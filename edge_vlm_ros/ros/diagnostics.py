"""What /diagnostics says, decided from status values by plain functions. Names as in REP 107."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

if TYPE_CHECKING:
    from edge_vlm_ros.runtime.status import (
        EngineReading,
        LookupCounts,
        PlacementStatus,
        PlanningStatus,
        PredictionError,
        QuestionStatus,
        StreamStatus,
        VisionStatus,
    )

NEAR_LIMIT = 0.8
"""Part of a queue's limit from which on a warning is given."""

MANY_PREDICTIONS = 20
MAX_PREDICTION_ERROR = 1.0
"""A factor of 2. From so many questions on a greater median error is warned of."""


class Level(IntEnum):
    OK = 0
    WARN = 1
    ERROR = 2


@dataclass(frozen=True)
class Report:
    """One line of /diagnostics: of ``component``, with values for people, units included."""

    component: str
    level: Level
    message: str
    values: Mapping[str, str]


def to_message(report: Report, node: str, hardware_id: str) -> DiagnosticStatus:
    return DiagnosticStatus(
        level=bytes([report.level]),
        name=f"{node}: {report.component}",
        message=report.message,
        hardware_id=hardware_id,
        values=[KeyValue(key=key, value=value) for key, value in report.values.items()],
    )


# ------------------------------------------------------------------------- node
@dataclass(frozen=True)
class NodeState:
    """What the node knows about itself. ``loading`` says how far, empty when nothing is loaded;
    ``power_sensor`` what measures the energy of answers, empty: nothing."""

    lifecycle: str
    model: str
    loading: str
    configure_error: str
    callback_errors: int
    power_sensor: str = ""


def node_report(state: NodeState, questions: QuestionStatus | None) -> Report:
    values = {"state": state.lifecycle, "model": state.model or "none"}
    if state.power_sensor:
        values["power sensor"] = state.power_sensor
    if state.callback_errors:
        values["callback errors"] = str(state.callback_errors)
    if questions is not None:
        values["pending questions"] = f"{questions.pending} of {questions.max_pending}"
        values["accepted questions"] = str(questions.accepted)
        values["rejected questions"] = str(sum(questions.rejected.values()))
        for reason, count in sorted(questions.rejected.items()):
            values[f"rejected for {reason}"] = str(count)
        for reason, count in sorted(questions.finished.items()):
            values[f"answers ended by {reason}"] = str(count)
    if state.configure_error:
        return Report(
            "node", Level.ERROR, f"could not be configured: {state.configure_error}", values
        )
    if state.loading:
        return Report("node", Level.OK, f"loading: {state.loading}", values)
    if questions is not None and questions.pending >= NEAR_LIMIT * questions.max_pending:
        text = f"question queue nearly full: {questions.pending} of {questions.max_pending}"
        return Report("node", Level.WARN, text, values)
    if state.callback_errors:
        return Report("node", Level.WARN, "unexpected errors in callbacks: see the log", values)
    return Report("node", Level.OK, state.lifecycle, values)


# ------------------------------------------------------------------------- stream
@dataclass(frozen=True)
class FrameCounts:
    """The counters of a stream that tell of lost frames."""

    dropped: int = 0
    invalid: int = 0
    failed: int = 0

    @staticmethod
    def of(status: StreamStatus) -> FrameCounts:
        return FrameCounts(status.frames_dropped, status.frames_invalid, status.frames_failed)


@dataclass(frozen=True)
class CameraState:
    """How a camera is watched. ``watched_s``: seconds since frames are expected, None: they are
    not; ``why_silent`` explains a silence."""

    topic: str
    watched_s: float | None
    silent_timeout_s: float
    why_silent: str = ""


def is_silent(status: StreamStatus, camera: CameraState) -> bool:
    if camera.watched_s is None or camera.watched_s <= camera.silent_timeout_s:
        return False
    return status.frame_age_s < 0 or status.frame_age_s > camera.silent_timeout_s


def stream_report(status: StreamStatus, before: FrameCounts, camera: CameraState) -> Report:
    """``before``: the counters at the last report."""
    problems = []
    if is_silent(status, camera):
        since = (
            "no frame yet" if status.frame_age_s < 0 else f"no frame for {status.frame_age_s:.1f} s"
        )
        problems.append(f"{since}: {camera.why_silent}" if camera.why_silent else since)
    if (dropped := status.frames_dropped - before.dropped) > 0:
        problems.append(f"{dropped} frames dropped")
    if (invalid := status.frames_invalid - before.invalid) > 0:
        problems.append(f"{invalid} images not usable")
    if (failed := status.frames_failed - before.failed) > 0:
        problems.append(f"{failed} frames failed in the encoder")
    if status.pending_frames >= NEAR_LIMIT * status.max_pending_frames:
        problems.append(
            f"pending frames near the limit: {status.pending_frames} of {status.max_pending_frames}"
        )
    values = {
        "topic": camera.topic,
        "frames received": str(status.frames_received),
        "frames registered": str(status.frames_registered),
        "frames skipped": str(status.frames_skipped),
        "frames dropped": str(status.frames_dropped),
        "frames invalid": str(status.frames_invalid),
        "frames failed": str(status.frames_failed),
        "pending frames": f"{status.pending_frames} of {status.max_pending_frames}",
        "frame rate": f"{status.frame_rate_hz:.2f} Hz",
        "frame age": "none yet" if status.frame_age_s < 0 else f"{status.frame_age_s:.2f} s",
        "history": f"{status.frames} frames, {status.turns} turns, {status.tokens} tokens",
        "history limit": f"{status.max_tokens} tokens",
        "ingested by": f"engine {status.ingest_engine}",
        "registration": f"{status.register_ms:.2f} ms",
        "encoding": f"{status.encode_ms:.1f} ms",
        "ingestion": f"{status.ingest_ms:.1f} ms",
    }
    component = f"stream {status.stream}"
    if problems:
        return Report(component, Level.WARN, "; ".join(problems), values)
    if camera.watched_s is None:
        return Report(component, Level.OK, "inactive", values)
    text = f"{status.frame_rate_hz:.1f} Hz, {status.frames} frames in the history"
    return Report(component, Level.OK, text, values)


# ------------------------------------------------------------------------- engines, placement
def engine_report(reading: EngineReading, busy: float) -> Report:
    """``busy``: share of the last period in the native library."""
    status = reading.status
    values = {
        "device": status.device,
        "model": status.model,
        "state": reading.state,
        "failures": str(reading.failures),
        "exact": str(status.exact).lower(),
        "cells": f"{status.cells_used} used, {status.cells_reserved} reserved, of {status.cells}",
        "trunks": str(status.trunks),
        "holds": ", ".join(reading.resident_streams) or "no stream",
        "running answers": str(status.running_answers),
        "waiting answers": str(status.waiting_answers),
        "generated": f"{status.generated_tokens} tokens",
        "ingested": f"{status.ingest_tokens} tokens",
        "prefill": f"{status.prefill_tok_s:.1f} tok/s",
        "decode": f"{status.decode_tok_s:.1f} tok/s",
        "busy": f"{100 * busy:.0f} %",
        "exported": _moved(status.exported_bytes, status.export_bytes_s),
        "imported": _moved(status.imported_bytes, status.import_bytes_s),
        "weights": _mib(status.memory_weights_bytes),
        "KV cache": _mib(status.memory_kv_bytes),
        "process": f"RSS {_mib(reading.memory_rss_bytes)}, PSS {_mib(reading.memory_pss_bytes)}",
    }
    component = f"engine {status.name}"
    if reading.state == "failed":
        again = (
            "not started again"
            if reading.retry_in_s < 0
            else f"started again in {reading.retry_in_s:.1f} s"
        )
        text = f"failed: {reading.error or 'for an unknown reason'}; {again}"
        return Report(component, Level.ERROR, text, values)
    if reading.state == "starting":
        after = f" after it failed: {reading.error}" if reading.error else ""
        return Report(component, Level.WARN, f"starting{after}", values)
    text = f"{reading.state}, {status.running_answers} answers running, {100 * busy:.0f} % busy"
    if status.waiting_answers:
        text += f", {status.waiting_answers} waiting for room"
    return Report(component, Level.OK, text, values)


def loading_engine_report(engine: str, progress: str) -> Report:
    return Report(f"engine {engine}", Level.OK, f"loading: {progress}", {"state": "starting"})


def placement_report(status: PlacementStatus) -> Report:
    """Warns of engines between which KV cannot be moved. One pair of engines is one value."""
    paths = {path: status.paths.get(path, 0) for path in ("local", "import", "replay")}
    values = {
        **{f"questions by {path}": str(count) for path, count in paths.items()},
        "handoffs": str(status.handoffs),
        "failovers": str(status.failovers),
        "imports": f"{status.full_imports} full, {status.delta_imports} delta",
        "failed imports": str(status.failed_imports),
        "exported": _mib(status.exported_bytes),
        "imported": _mib(status.imported_bytes),
        "replayed": f"{status.replayed_tokens} tokens",
        "residency hits": _hits(status.residency),
        "prefix hits": _hits(status.prefixes),
        "snapshot hits": _hits(status.snapshots),
        "resident versions": str(len(status.residents)),
        "evicted trunks": str(status.evicted_trunks),
        "snapshots": f"{status.snapshot_entries} of {status.max_snapshot_entries}",
        "snapshot memory": f"{_mib(status.snapshot_bytes)} of {_mib(status.max_snapshot_bytes)}",
        "snapshot evictions": str(status.snapshot_evictions),
        "prefixes": f"{status.prefix_entries} of {status.max_prefix_entries}",
    }
    for probe in status.probes:
        detail = f": {probe.detail}" if probe.detail else ""
        values[f"{probe.source} -> {probe.destination}"] = f"{probe.outcome}{detail}"
    apart = [
        f"{probe.source} -> {probe.destination}"
        for probe in status.probes
        if probe.outcome == "incompatible"
    ]
    if apart:
        text = f"KV cannot be moved {', '.join(apart)}: replay is used"
        return Report("placement", Level.WARN, text, values)
    text = ", ".join(f"{count} {path}" for path, count in paths.items())
    return Report("placement", Level.OK, f"questions: {text}", values)


# ------------------------------------------------------------------------- planning
def planning_report(status: PlanningStatus) -> Report:
    """Warns when times are foreseen so badly that choices are no better than guesses."""
    predictions = {"first token": status.first_token, "end": status.finished}
    values = {
        "policy": status.policy,
        "objective": status.objective.replace("_", " "),
        "load": "sustained: shares are used" if status.sustained_load else "light",
        "questions": f"{60 * status.question_rate_hz:.1f} a minute",
        "decisions": str(status.decisions),
        "time of a decision": f"{status.decision_mean_us:.0f} us, at most "
        f"{status.decision_max_us:.0f} us",
    }
    for engine in status.engines:
        values[f"questions to {engine.engine}"] = (
            f"{100 * engine.routed:.0f} %, share {100 * engine.share:.0f} %, "
            f"utilisation {100 * engine.utilisation:.0f} %"
        )
    for what, prediction in predictions.items():
        values[f"predicted {what}"] = _off(prediction)
    for cost in status.costs:
        off = f"off by a factor of {1 + cost.error:.2f}, {cost.n} steps"
        values[f"cost of {cost.activity.value} on {cost.engine}"] = off
    wrong = [
        f"{what} by a factor of {1 + prediction.error:.1f}"
        for what, prediction in predictions.items()
        if prediction.n >= MANY_PREDICTIONS and prediction.error > MAX_PREDICTION_ERROR
    ]
    if wrong:
        text = f"predictions are off: {', '.join(wrong)} (median)"
        return Report("planning", Level.WARN, text, values)
    return Report("planning", Level.OK, f"{status.policy}, {status.decisions} decisions", values)


# ------------------------------------------------------------------------- vision
def encoder_report(status: VisionStatus) -> Report:
    values = {
        "backend": status.backend,
        "embeddings": f"{status.n_tokens} x {status.n_embd}",
        "waiting frames": str(status.queue_length),
        "self-test": status.self_test.message,
        "encoders": str(status.n_encoders),
        "not used": "; ".join(status.refused) or "none",
    }
    if status.refused:
        text = f"{status.backend} instead of the first backend: {status.refused[0]}"
        return Report("encoder", Level.WARN, text, values)
    return Report("encoder", Level.OK, status.backend, values)


def caches_report(status: VisionStatus) -> Report:
    cache = status.cache
    asked = cache.hits + cache.misses
    rate = 100 * cache.hits / asked if asked else 0.0
    values = {
        "hits": str(cache.hits),
        "misses": str(cache.misses),
        "hit rate": f"{rate:.1f} %",
        "evictions": str(cache.evictions),
        "entries": f"{cache.entries} of {status.max_entries}",
        "size": f"{_mib(cache.bytes)} of {_mib(status.max_bytes)}",
        "pinned": _mib(cache.pinned_bytes),
    }
    if cache.over_budget:
        text = "pending frames and questions hold more embeddings than the cache may"
        return Report("caches", Level.WARN, text, values)
    return Report("caches", Level.OK, f"{cache.entries} embeddings, {rate:.0f} % hits", values)


def _hits(counts: LookupCounts) -> str:
    return f"{counts.hits} of {counts.hits + counts.misses}"


def _off(prediction: PredictionError) -> str:
    if not prediction.n:
        return "no questions yet"
    return f"off by a factor of {1 + prediction.error:.2f} (median of {prediction.n})"


def _moved(size: int, bytes_s: float) -> str:
    return f"{_mib(size)} at {bytes_s / 2**20:.0f} MiB/s"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
