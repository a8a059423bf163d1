"""Between the runtime's values and ROS messages. Times: nanoseconds here, stamps there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from std_msgs.msg import Header

from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.history import (
    Binding,
    NewestPublished,
    NewestRegistered,
    Stamp,
    Version,
    VersionBinding,
)
from edge_vlm_ros.msg import Answer as AnswerMessage
from edge_vlm_ros.msg import ContextUsed as ContextUsedMessage
from edge_vlm_ros.msg import ContextVersion, Metrics, Sampling
from edge_vlm_ros.msg import EngineStatus as EngineStatusMessage
from edge_vlm_ros.msg import PairProbe as PairProbeMessage
from edge_vlm_ros.msg import PlacementStatus as PlacementStatusMessage
from edge_vlm_ros.msg import Plan as PlanMessage
from edge_vlm_ros.msg import PlanAlternative as PlanAlternativeMessage
from edge_vlm_ros.msg import PlanningStatus as PlanningStatusMessage
from edge_vlm_ros.msg import Resident as ResidentMessage
from edge_vlm_ros.msg import StreamStatus as StreamStatusMessage
from edge_vlm_ros.planning.plan import Alternative, Objective
from edge_vlm_ros.runtime.answer import (
    AnswerMetrics,
    AnswerResult,
    AskOptions,
    ContextUsed,
    QuestionRejected,
)

from .stamps import ns_to_stamp, stamp_to_ns

if TYPE_CHECKING:
    from edge_vlm_ros.runtime.status import (
        EngineReading,
        PlacementStatus,
        PlanningStatus,
        PlanRecord,
        StreamStatus,
    )


def version_message(version: Version | None) -> ContextVersion:
    """An empty message for None: there is no such version yet."""
    if version is None:
        return ContextVersion()
    return ContextVersion(stream=version.stream, epoch=version.epoch, n=version.n)


# ------------------------------------------------------------------------- a question
def ask_options(goal: AskQuestion.Goal, stream: str) -> AskOptions:
    """The options of a goal about ``stream``. Raises QuestionRejected."""
    if not math.isfinite(goal.deadline_s) or goal.deadline_s < 0:
        raise QuestionRejected(
            "bad_options", f"deadline_s must be 0 (none) or more seconds, not {goal.deadline_s}"
        )
    return AskOptions(
        binding=_binding(goal, stream),
        max_tokens=int(goal.max_tokens),
        sampling=_sampling(goal.sampling),
        stop=tuple(goal.stop),
        deadline_s=float(goal.deadline_s),
        commit=bool(goal.commit),
        engine=goal.engine,
        prefill_engine=goal.prefill_engine,
        path=goal.path,
    )


def _binding(goal: AskQuestion.Goal, stream: str) -> Binding:
    if goal.binding == AskQuestion.Goal.BIND_REGISTERED:
        return NewestRegistered()
    if goal.binding == AskQuestion.Goal.BIND_PUBLISHED:
        return NewestPublished()
    if goal.binding == AskQuestion.Goal.BIND_STAMP:
        return Stamp(stamp_to_ns(goal.stamp))
    if goal.binding == AskQuestion.Goal.BIND_VERSION:
        if goal.version.stream not in ("", stream):
            raise QuestionRejected(
                "bad_binding",
                f"the version is of stream {goal.version.stream!r}, the question about {stream!r}",
            )
        return VersionBinding(epoch=int(goal.version.epoch), n=int(goal.version.n))
    raise QuestionRejected(
        "bad_binding", f"binding {goal.binding} is unknown: use one of the goal's BIND_ constants"
    )


def _sampling(message: Sampling) -> SamplingParameters:
    try:
        return SamplingParameters(
            temperature=float(message.temperature),
            top_k=int(message.top_k),
            top_p=float(message.top_p),
            min_p=float(message.min_p),
            repeat_penalty=float(message.repeat_penalty),
            seed=int(message.seed),
        )
    except ValueError as error:
        raise QuestionRejected("bad_options", str(error)) from error


# ------------------------------------------------------------------------- an answer
def context_message(context: ContextUsed) -> ContextUsedMessage:
    return ContextUsedMessage(
        version=version_message(context.version),
        frames=context.frames,
        first_stamp=ns_to_stamp(context.first_stamp_ns),
        last_stamp=ns_to_stamp(context.last_stamp_ns),
        turns=context.turns,
        tokens=context.tokens,
        identity=context.identity.hex(),
    )


_METRIC_FIELDS = tuple(AnswerMetrics.__dataclass_fields__)


def metrics_message(result: AnswerResult, header: Header, energy_j: float = 0.0) -> Metrics:
    return Metrics(
        header=header,
        stream=result.stream,
        finish_reason=result.finish_reason.value,
        energy_j=energy_j,
        **{name: getattr(result.metrics, name) for name in _METRIC_FIELDS},
    )


def answer_message(result: AnswerResult, header: Header) -> AnswerMessage:
    return AnswerMessage(
        header=header,
        answer_id=result.answer_id,
        stream=result.stream,
        question=result.question,
        text=result.text,
        finish_reason=result.finish_reason.value,
        error=result.error,
        committed=result.committed,
        context=context_message(result.context),
    )


def result_message(
    result: AnswerResult, header: Header, energy_j: float = 0.0
) -> AskQuestion.Result:
    return AskQuestion.Result(
        text=result.text,
        finish_reason=result.finish_reason.value,
        error=result.error,
        answer_id=result.answer_id,
        token_ids=list(result.token_ids),
        context=context_message(result.context),
        metrics=metrics_message(result, header, energy_j),
    )


# ------------------------------------------------------------------------- status
_STREAM_VERSIONS = ("registered", "encoded", "published")
_STREAM_FIELDS = tuple(
    name
    for name in StreamStatusMessage.get_fields_and_field_types()
    if name not in ("header", "stream", *_STREAM_VERSIONS)
)
_READING_FIELDS = (
    "state",
    "error",
    "retry_in_s",
    "failures",
    "resident_streams",
    "memory_rss_bytes",
    "memory_pss_bytes",
)
_NODE_FIELDS = ("header", "engine", "busy", "memory_embeddings_bytes", "memory_snapshots_bytes")
_ENGINE_FIELDS = tuple(
    name
    for name in EngineStatusMessage.get_fields_and_field_types()
    if name not in (*_NODE_FIELDS, *_READING_FIELDS)
)
_LOOKUPS = {"residency": "residency", "prefix": "prefixes", "snapshot": "snapshots"}
_PATHS = ("local", "import", "replay")
_PLACEMENT_NUMBERS = tuple(
    name
    for name in PlacementStatusMessage.get_fields_and_field_types()
    if name not in ("header", "residents", "probes")
    and name not in {f"path_{path}" for path in _PATHS}
    and name not in {f"{kind}_{what}" for kind in _LOOKUPS for what in ("hits", "misses")}
)


def stream_status_message(status: StreamStatus, header: Header) -> StreamStatusMessage:
    versions: dict[str, Any] = {
        name: version_message(getattr(status, name)) for name in _STREAM_VERSIONS
    }
    values: dict[str, Any] = {name: getattr(status, name) for name in _STREAM_FIELDS}
    return StreamStatusMessage(header=header, stream=status.stream, **versions, **values)


def engine_status_message(
    reading: EngineReading,
    header: Header,
    busy: float,
    embeddings_bytes: int,
    snapshots_bytes: int,
) -> EngineStatusMessage:
    """``busy`` is the share of the last period spent in the native library, 0 to 1; the bytes are
    those of the node's embedding cache and snapshots."""
    values: dict[str, Any] = {name: getattr(reading.status, name) for name in _ENGINE_FIELDS}
    values |= {name: getattr(reading, name) for name in _READING_FIELDS}
    return EngineStatusMessage(
        header=header,
        engine=reading.status.name,
        busy=busy,
        memory_embeddings_bytes=embeddings_bytes,
        memory_snapshots_bytes=snapshots_bytes,
        **values,
    )


def loading_engine_message(name: str, model: str, header: Header) -> EngineStatusMessage:
    """The status of an engine whose model is being loaded."""
    return EngineStatusMessage(
        header=header,
        engine=name,
        model=model,
        state="starting",
        retry_in_s=-1.0,
    )


def placement_message(status: PlacementStatus, header: Header) -> PlacementStatusMessage:
    values: dict[str, Any] = {name: getattr(status, name) for name in _PLACEMENT_NUMBERS}
    values |= {f"path_{path}": status.paths.get(path, 0) for path in _PATHS}
    for kind, attribute in _LOOKUPS.items():
        counts = getattr(status, attribute)
        values |= {f"{kind}_hits": counts.hits, f"{kind}_misses": counts.misses}
    return PlacementStatusMessage(
        header=header,
        residents=[
            ResidentMessage(
                engine=resident.engine,
                version=version_message(resident.version),
                role=resident.role,
                cells=resident.cells,
                bytes=resident.bytes,
                idle_s=resident.idle_s,
                readers=resident.readers,
            )
            for resident in status.residents
        ],
        probes=[PairProbeMessage(**vars(probe)) for probe in status.probes],
        **values,
    )


# ------------------------------------------------------------------------- planning
_ALTERNATIVE_FIELDS = tuple(Alternative.__dataclass_fields__)
_PLANNING_FIELDS = (
    "policy",
    "objective",
    "sustained_load",
    "question_rate_hz",
    "decisions",
    "decision_mean_us",
    "decision_max_us",
)


def plan_message(record: PlanRecord, header: Header) -> PlanMessage:
    plan = record.plan
    return PlanMessage(
        header=header,
        answer_id=record.answer_id,
        stream=record.stream,
        phase="finished" if record.finished else "planned",
        policy=plan.policy,
        objective=record.objective,
        reason=plan.reason,
        chosen=plan.alternatives.index(plan.chosen),
        alternatives=[_alternative(a, record.objective) for a in plan.alternatives],
        decided_s=record.decided_s,
        predicted_first_token_s=record.predicted_first_token_s,
        predicted_finished_s=record.predicted_finished_s,
        actual_first_token_s=_or_unknown(record.actual_first_token_s),
        actual_finished_s=_or_unknown(record.actual_finished_s),
        first_token_error_s=_less(record.actual_first_token_s, record.predicted_first_token_s),
        finished_error_s=_less(record.actual_finished_s, record.predicted_finished_s),
        finish_reason=record.finish_reason,
    )


def planning_message(status: PlanningStatus, header: Header) -> PlanningStatusMessage:
    return PlanningStatusMessage(
        header=header,
        first_token_predictions=status.first_token.n,
        first_token_error=status.first_token.error,
        finished_predictions=status.finished.n,
        finished_error=status.finished.error,
        engines=[engine.engine for engine in status.engines],
        shares=[engine.share for engine in status.engines],
        routed=[engine.routed for engine in status.engines],
        utilisation=[engine.utilisation for engine in status.engines],
        cost_engines=[cost.engine for cost in status.costs],
        cost_activities=[cost.activity.value for cost in status.costs],
        cost_steps=[cost.n for cost in status.costs],
        cost_errors=[cost.error for cost in status.costs],
        **{name: getattr(status, name) for name in _PLANNING_FIELDS},
    )


def _alternative(alternative: Alternative, objective: Objective) -> PlanAlternativeMessage:
    values: dict[str, Any] = {name: getattr(alternative, name) for name in _ALTERNATIVE_FIELDS}
    return PlanAlternativeMessage(score_s=alternative.score(objective), **values)


def _or_unknown(seconds: float | None) -> float:
    return -1.0 if seconds is None else seconds


def _less(actual: float | None, predicted: float) -> float:
    return 0.0 if actual is None else actual - predicted
