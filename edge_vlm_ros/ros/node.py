"""The lifecycle node `edge_vlm`: configure loads the models, activate watches the cameras."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockChange, ClockType, JumpThreshold, TimeJump
from rclpy.duration import Duration
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter

from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.planning.plan import Objective
from edge_vlm_ros.runtime import NotActiveError, Runtime, RuntimeConfig, RuntimeListener
from edge_vlm_ros.vision.errors import VisionError

from .allocator import give_back
from .annotated_images import AnnotatedImages
from .ask_server import AskServer
from .diagnostics import NodeState
from .energy import open_meter
from .listener import NodeListener
from .logging_bridge import log_to_ros
from .node_parameters import NodeParameters
from .plan_publisher import PlanPublisher
from .publishers import Publishers
from .reporter import Reporter
from .services import Services
from .settings import camera_settings, runtime_config
from .streams import CameraSubscription
from .throttle import Throttle

RuntimeFactory = Callable[[RuntimeConfig, RuntimeListener], Runtime]

_PROGRESS_LOG_S = 1.0

# Their texts say what to do; anything else is a defect and its traceback of use.
_EXPLAINED = (ValueError, OSError, EngineError, VisionError)
_SUCCESS = TransitionCallbackReturn.SUCCESS
_FAILURE = TransitionCallbackReturn.FAILURE
_TWIN_PERIOD_S = 5.0


class EdgeVlmNode(LifecycleNodeMixin, Node):
    """Questions about camera streams as a managed ROS 2 node.

    Its callbacks block (an answer takes a thread): spin it with ``spinning.make_executor``.
    ``make_runtime`` exists for tests.
    """

    def __init__(
        self,
        make_runtime: RuntimeFactory = Runtime,
        parameter_overrides: list[Parameter] | None = None,
        **node_arguments: Any,
    ) -> None:
        Node.__init__(
            self, "edge_vlm", parameter_overrides=parameter_overrides or [], **node_arguments
        )
        # Reentrant, so that the state can be read while a transition loads a model; transitions
        # themselves are guarded by a lock.
        LifecycleNodeMixin.__init__(self, callback_group=ReentrantCallbackGroup())
        log_to_ros(self.get_logger())
        self._transition_lock = threading.Lock()
        self._guard_change_state_service()
        self._make_runtime = make_runtime
        self._runtime: Runtime | None = None
        self._cameras: list[CameraSubscription] = []
        self._loading = ""
        self._progress_logged_at = 0.0
        self._configure_error = ""
        self._active_since: float | None = None
        self.callback_errors = 0

        self.parameters = NodeParameters(
            self,
            configured=lambda: self.label != "unconfigured",
            on_ingest_engine=self._follow_ingest_engine,
            on_policy=self._follow_policy,
        )
        throttle = Throttle(period=lambda: self.parameters.get("log_throttle"))
        self.outputs = Publishers(self, throttle)
        self.plans = PlanPublisher(
            self, self.outputs, wanted=lambda: self.parameters.get("planning.publish_plans")
        )
        self.annotated = AnnotatedImages(self, self.outputs, self._frame_id)
        self._energy = open_meter(self, self.parameters.get("power_sensor"))
        self._ask_server = AskServer(
            self,
            self.outputs,
            self._energy,
            runtime=lambda: self._runtime,
            inactive_text=self._inactive_text,
            result_timeout=self.parameters.get("result_timeout"),
        )
        self._reporter = Reporter(
            self,
            self,
            self.outputs,
            hardware_id=self.parameters.get("hardware_id") or socket.gethostname(),
            diagnostics_period=self.parameters.get("diagnostics.period"),
            status_period=self.parameters.get("status_period"),
        )
        self._offer_services()
        self._has_twin = False
        self._watch()

    def _offer_services(self) -> None:
        Services(
            self,
            self.outputs,
            runtime=lambda: self._runtime,
            inactive_text=self._inactive_text,
            topics=lambda: {camera.settings.stream: camera.topic for camera in self._cameras},
            engines=lambda: self._reporter.engine_messages("service"),
            move_ingestion=self.move_ingestion,
        )

    def _watch(self) -> None:
        """Notice time that jumps back, and other nodes of the same name, which may come later."""
        backwards = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
        )
        self._time_jumps = self.get_clock().create_jump_callback(
            backwards, post_callback=self._on_time_jump
        )
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(_TWIN_PERIOD_S, self._warn_of_twins, clock=steady)

    # -------------------------------------------------------------------- readings
    @property
    def label(self) -> str:
        """The lifecycle state: unconfigured, inactive, active, finalized, or one in between."""
        return str(self._state_machine.current_state[1])

    @property
    def runtime(self) -> Runtime | None:
        return self._runtime

    @property
    def cameras(self) -> list[CameraSubscription]:
        return self._cameras

    @property
    def engine_names(self) -> tuple[str, ...]:
        return self.parameters.engine_names()

    @property
    def active_since(self) -> float | None:
        return self._active_since

    def state(self) -> NodeState:
        return NodeState(
            lifecycle=self.label,
            model=self.parameters.get("model_profile") or "demo",
            loading=self._loading,
            configure_error=self._configure_error,
            callback_errors=self.callback_errors,
            power_sensor=self._energy.sensor_name,
        )

    def _frame_id(self, stream: str) -> str:
        return next((c.frame_id for c in self._cameras if c.settings.stream == stream), "")

    def silent_timeout(self) -> float:
        return float(self.parameters.get("silent_camera_timeout"))

    # -------------------------------------------------------------------- transitions
    def change(self, transition: str) -> bool:
        """Make a lifecycle transition: configure, activate, deactivate, cleanup or shutdown.

        False when the state does not allow it, another one is running, or it failed; the log says
        which.
        """
        trigger = getattr(self, f"trigger_{transition}")
        return self._guarded(transition, lambda: trigger() == _SUCCESS)

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._configure_error = ""
        try:
            self._configure()
        except Exception as error:
            # Whatever it was, the node stays up: the user can mend the parameters and try again.
            self._configure_error = str(error) or type(error).__name__
            self.get_logger().error(f"could not be configured: {self._configure_error}")
            if not isinstance(error, _EXPLAINED):
                self.get_logger().error(traceback.format_exc())
            self._release()
            return _FAILURE
        finally:
            self._loading = ""
        return _SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._runtime is not None
        self._runtime.activate()
        self._active_since = time.monotonic()
        self._warn_of_twins()
        streams = ", ".join(f"{c.settings.stream} ({c.topic})" for c in self._cameras)
        self.get_logger().info(f"active: watching {streams}")
        return _SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._deactivate()
        return _SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._release()
        return _SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._deactivate()
        self._release()
        return _SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._release()
        return _SUCCESS

    def close(self) -> None:
        """End everything; results of running goals are sent before."""
        self._deactivate()
        self._ask_server.close()
        if self.label in ("unconfigured", "inactive", "active"):
            self.change("shutdown")
        self._release()
        self._energy.close()
        self._time_jumps.unregister()

    def destroy_node(self) -> None:
        """Leave the ROS graph. What rclpy leaves behind would look alive to others."""
        self._ask_server.destroy()
        super().destroy_node()
        self._state_machine.destroy_when_not_in_use()

    def _configure(self) -> None:
        for sentence in self.parameters.unused():
            self.get_logger().warning(sentence)
        if self.parameters.problems:
            raise ValueError("; ".join(self.parameters.problems.values()))
        streams = {
            name: self.parameters.stream_values(name) for name in self.parameters.stream_names()
        }
        engines = {name: self.parameters.engine_values(name) for name in self.engine_names}
        config = runtime_config(self.parameters.node_values(), streams, engines)
        self._reporter.forget()
        annotated = self.parameters.get("annotated_images")
        self.outputs.add_status(tuple(streams), tuple(engines), annotated)
        self._on_progress("model profile read", 0.0)
        runtime = self._make_runtime(config, NodeListener(self.outputs, self.plans, self.annotated))
        # Before the models, whose loading takes long: a wrong topic is told at once.
        for name, values in streams.items():
            settings = camera_settings(name, values)
            self._cameras.append(CameraSubscription(self, settings, runtime, self.outputs))
        runtime.load(self._on_progress)
        self._runtime = runtime
        for stream in config.streams:
            wanted = self.parameters.get(f"{stream.name}.ingest_engine")
            if wanted != stream.ingest_engine:  # changed while the models were loaded
                self._follow_ingest_engine(stream.name, wanted)
        if self._policy() != (config.planning.policy, config.planning.objective):
            self._follow_policy()
        self.get_logger().info(f"configured with model {config.profile.name}")

    def _deactivate(self) -> None:
        self._active_since = None
        if self._runtime is not None and self._runtime.active:
            timeout = self.parameters.get("deactivate_timeout")
            try:
                self._runtime.deactivate(timeout)
            except TimeoutError as error:
                self.get_logger().error(str(error))
            if not self._ask_server.wait_idle(timeout):
                self.get_logger().error(f"some goals did not end within {timeout} s")

    def _release(self) -> None:
        for camera in self._cameras:
            camera.close()
        self._cameras = []
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()
            give_back()
        self.annotated.clear()
        self.outputs.remove_status()

    # -------------------------------------------------------------------- guarding transitions
    def _guard_change_state_service(self) -> None:
        """In rclpy an impossible transition raises out of the service and ends the node."""
        serve = self._service_change_state.callback

        def guarded(request: Any, response: Any) -> Any:
            name = request.transition.label or str(request.transition.id)
            response.success = self._guarded(name, lambda: serve(request, response).success)
            return response

        self._service_change_state.callback = guarded

    def _guarded(self, name: str, transition: Callable[[], bool]) -> bool:
        if not self._transition_lock.acquire(blocking=False):
            self.get_logger().warning(f"transition {name} refused: another one is running")
            return False
        try:
            return bool(transition())
        except rclpy_implementation.RCLError:
            self.get_logger().warning(f"transition {name} is not possible: node is {self.label}")
            return False
        finally:
            self._transition_lock.release()

    # -------------------------------------------------------------------- events
    def _on_progress(self, what: str, fraction: float) -> None:
        text = f"{what} {100 * fraction:.0f} %" if 0 < fraction < 1 else what
        now = time.monotonic()
        if not self._loading.startswith(what) or now - self._progress_logged_at > _PROGRESS_LOG_S:
            self._progress_logged_at = now
            self.get_logger().info(f"loading: {text}")
        self._loading = text

    def _on_time_jump(self, jump: TimeJump) -> None:
        if jump.delta.nanoseconds >= 0 or jump.clock_change != ClockChange.ROS_TIME_NO_CHANGE:
            return
        self.get_logger().warning(
            f"time jumped back by {-jump.delta.nanoseconds / 1e9:.3f} s: all streams start anew"
        )
        # Not here: the clock is locked while this runs.
        self.executor.create_task(self._reset_all)

    def _reset_all(self) -> None:
        runtime = self._runtime
        if runtime is None or not runtime.active:
            return
        for stream in runtime.stream_names:
            self.get_logger().info(f"new history {runtime.reset(stream)}")

    def _warn_of_twins(self) -> None:
        this = (self.get_name(), self.get_namespace())
        had_twin, self._has_twin = (
            self._has_twin,
            (self.get_node_names_and_namespaces().count(this) > 1),
        )
        if self._has_twin and not had_twin:
            self.get_logger().warning(
                f"another node {self.get_fully_qualified_name()} runs in this ROS_DOMAIN_ID: "
                "questions may reach either. Rename one with -r __node:=NAME"
            )

    def _inactive_text(self) -> str:
        name = self.get_fully_qualified_name()
        step = {"unconfigured": "configure", "inactive": "activate"}.get(self.label)
        hint = f": ros2 lifecycle set {name} {step}" if step else ""
        reason = f" ({self._configure_error})" if self._configure_error else ""
        return f"the node is {self.label}{reason}{hint}"

    # -------------------------------------------------------------------- ingestion
    def move_ingestion(self, stream: str, engine: str) -> None:
        """Let ``engine`` (empty: as the policy says) compute the frames of a stream; the parameter
        follows.

        Raises UnknownStreamError, UnknownEngineError or NotActiveError.
        """
        runtime = self._runtime
        if runtime is None:
            raise NotActiveError(self._inactive_text())
        runtime.move_ingestion(stream, engine)
        self.set_parameters([Parameter(f"{stream}.ingest_engine", value=engine)])

    def _follow_ingest_engine(self, stream: str, engine: str) -> None:
        """The parameter of a configured node was changed."""
        runtime = self._runtime
        if runtime is None:
            return
        try:
            runtime.move_ingestion(stream, engine)
        except (KeyError, RuntimeError) as error:
            self.get_logger().error(f"ingestion of stream {stream} was not moved: {error}")

    # -------------------------------------------------------------------- planning
    def _policy(self) -> tuple[str, Objective]:
        get = self.parameters.get
        return get("planning.policy"), get("planning.objective")

    def _follow_policy(self) -> None:
        """The parameters of a configured node were changed."""
        runtime = self._runtime
        if runtime is None:
            return
        policy, objective = self._policy()
        try:
            runtime.set_policy(policy, objective)
        except (ValueError, RuntimeError) as error:
            self.get_logger().error(f"the policy is not {policy}: {error}")
