"""The node's services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node

from edge_vlm_ros.msg import EngineStatus as EngineStatusMessage
from edge_vlm_ros.runtime import Runtime
from edge_vlm_ros.srv import (
    CommitAnswer,
    DescribeStream,
    EvictState,
    ListEngines,
    ListStreams,
    MoveIngestion,
    ResetStream,
    Trace,
)

from .convert import stream_status_message, version_message
from .publishers import Publishers


@dataclass(frozen=True)
class ServiceSpec:
    """One service of the node."""

    name: str
    type: type
    description: str


LIST_STREAMS = ServiceSpec("~/list_streams", ListStreams, "Streams and their camera topics")
DESCRIBE_STREAM = ServiceSpec(
    "~/describe_stream", DescribeStream, "Status of a stream and the items of its history"
)
RESET_STREAM = ServiceSpec(
    "~/reset_stream", ResetStream, "Forget everything remembered of a stream"
)
COMMIT_ANSWER = ServiceSpec(
    "~/commit_answer", CommitAnswer, "Append a finished answer and its question to its history"
)
LIST_ENGINES = ServiceSpec("~/list_engines", ListEngines, "Status of all engines")
MOVE_INGESTION = ServiceSpec(
    "~/move_ingestion", MoveIngestion, "Let another engine compute the frames of a stream"
)
EVICT_STATE = ServiceSpec(
    "~/evict_state", EvictState, "Give up the KV that an engine holds of a stream"
)
TRACE = ServiceSpec(
    "~/trace", Trace, "Write what every engine does to a trace file for Perfetto, or stop that"
)
SERVICES = (
    LIST_STREAMS,
    DESCRIBE_STREAM,
    RESET_STREAM,
    COMMIT_ANSWER,
    LIST_ENGINES,
    MOVE_INGESTION,
    EVICT_STATE,
    TRACE,
)


class Services:
    """Serves the table above from the runtime, if there is one.

    ``topics`` gives stream name -> camera topic, ``engines`` the engines' status;
    ``move_ingestion`` takes stream and engine and raises what is wrong with them.
    """

    def __init__(
        self,
        node: Node,
        publishers: Publishers,
        runtime: Callable[[], Runtime | None],
        inactive_text: Callable[[], str],
        topics: Callable[[], dict[str, str]],
        engines: Callable[[], list[EngineStatusMessage]],
        move_ingestion: Callable[[str, str], None],
    ) -> None:
        self._node = node
        self._publishers = publishers
        self._runtime = runtime
        self._inactive_text = inactive_text
        self._topics = topics
        self._engines = engines
        self._move = move_ingestion
        group = ReentrantCallbackGroup()
        handlers: dict[ServiceSpec, Callable[[Any, Any], Any]] = {
            LIST_STREAMS: self._list_streams,
            DESCRIBE_STREAM: self._answering(self._describe_stream),
            RESET_STREAM: self._answering(self._reset_stream),
            COMMIT_ANSWER: self._answering(self._commit_answer),
            LIST_ENGINES: self._list_engines,
            MOVE_INGESTION: self._answering(self._move_ingestion),
            EVICT_STATE: self._answering(self._evict_state),
            TRACE: self._answering(self._trace),
        }
        for spec, handler in handlers.items():
            node.create_service(spec.type, spec.name, handler, callback_group=group)

    def _answering(self, handler: Callable[[Runtime, Any, Any], None]) -> Callable[[Any, Any], Any]:
        """``handler`` with the runtime; what it raises becomes the response's message."""

        def serve(request: Any, response: Any) -> Any:
            runtime = self._runtime()
            if runtime is None:
                response.success = False
                response.message = self._inactive_text()
                return response
            try:
                handler(runtime, request, response)
                response.success = True
            except Exception as error:
                # A service must answer: the caller, not the log, is where the reason belongs.
                response.success = False
                response.message = str(error)
            return response

        return serve

    def _list_streams(
        self, request: ListStreams.Request, response: ListStreams.Response
    ) -> ListStreams.Response:
        topics = self._topics()
        response.streams = list(topics)
        response.topics = list(topics.values())
        return response

    def _describe_stream(
        self, runtime: Runtime, request: DescribeStream.Request, response: DescribeStream.Response
    ) -> None:
        response.items = runtime.describe(request.stream)
        response.status = stream_status_message(
            runtime.stream_status(request.stream), self._publishers.header()
        )

    def _reset_stream(
        self, runtime: Runtime, request: ResetStream.Request, response: ResetStream.Response
    ) -> None:
        version = runtime.reset(request.stream)
        response.version = version_message(version)
        response.message = f"stream {request.stream} starts anew with {version}"

    def _commit_answer(
        self, runtime: Runtime, request: CommitAnswer.Request, response: CommitAnswer.Response
    ) -> None:
        version = runtime.commit(request.answer_id)
        response.version = version_message(version)
        response.message = f"answer {request.answer_id} is part of {version}"

    def _list_engines(
        self, request: ListEngines.Request, response: ListEngines.Response
    ) -> ListEngines.Response:
        response.engines = self._engines()
        return response

    def _move_ingestion(
        self, runtime: Runtime, request: MoveIngestion.Request, response: MoveIngestion.Response
    ) -> None:
        self._move(request.stream, request.engine)
        engine = runtime.stream_status(request.stream).ingest_engine
        response.message = f"frames of stream {request.stream} are computed by engine {engine}"

    def _evict_state(
        self, runtime: Runtime, request: EvictState.Request, response: EvictState.Response
    ) -> None:
        if not runtime.evict(request.stream, request.engine):
            raise ValueError(
                f"nothing given up: engine {request.engine} holds no state of stream "
                f"{request.stream} that is free to go"
            )
        response.message = f"engine {request.engine} has given up stream {request.stream}"

    def _trace(self, runtime: Runtime, request: Trace.Request, response: Trace.Response) -> None:
        if request.path:
            runtime.start_trace(request.path)
            response.message = f"writing {request.path}; call again with an empty path to stop"
            return
        response.events = runtime.stop_trace()
        response.message = f"the trace has {response.events} events"
