"""The node's parameters: one table, from which declarations, checks and documentation are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

Value = bool | int | float | str | list[str]

MAX_PENDING_QUESTIONS = 64
"""Upper end of questions.max_pending: the executor has a thread for each."""

_STREAM_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_RESERVED_NAMES = ("engine", "vision", "questions", "diagnostics", "qos_overrides")
_INT_MAX = 2**31 - 1


class Change(Enum):
    """When a parameter may be changed; the value says it to the user."""

    START = "only when the node is started"
    UNCONFIGURED = "only while the node is unconfigured: clean it up first"
    LIVE = "at any time"


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter. ``range`` is (least, greatest) of a number, ``choices`` those of a text."""

    name: str
    default: Value
    description: str
    change: Change = Change.UNCONFIGURED
    range: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()

    @property
    def constraints(self) -> str:
        """What a value must be and when it may be changed, in words."""
        allowed = f"one of: {', '.join(self.choices)}; " if self.choices else ""
        return f"{allowed}may be changed {self.change.value}"

    def descriptor(self) -> ParameterDescriptor:
        descriptor = ParameterDescriptor(
            description=self.description,
            additional_constraints=self.constraints,
            read_only=self.change is Change.START,
        )
        if self.range is not None and isinstance(self.default, float):
            low, high = self.range
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high), step=0.0)
            ]
        elif self.range is not None:
            low, high = self.range
            descriptor.integer_range = [
                IntegerRange(from_value=int(low), to_value=int(high), step=1)
            ]
        return descriptor


NODE_PARAMETERS: tuple[ParameterSpec, ...] = (
    ParameterSpec(
        "autostart", True, "Configure and activate the node by itself when it starts", Change.START
    ),
    ParameterSpec(
        "model_profile",
        "",
        "The model: a name from config/models (demo), or the path of a model profile. "
        "Empty: the demo model",
    ),
    ParameterSpec("streams", ["camera"], "Names of the camera streams, each with parameters below"),
    # -- questions
    ParameterSpec(
        "questions.max_pending",
        8,
        "Questions accepted and not yet finished; one more is rejected with queue_full",
        range=(1, MAX_PENDING_QUESTIONS),
    ),
    ParameterSpec(
        "questions.max_question_tokens",
        128,
        "Longest question in tokens, with its template",
        range=(1, 8192),
    ),
    ParameterSpec(
        "questions.default_max_tokens",
        96,
        "Longest answer in tokens when the question does not say",
        range=(1, 8192),
    ),
    ParameterSpec(
        "questions.max_answer_tokens",
        256,
        "Longest answer in tokens that a question may ask for",
        range=(1, 8192),
    ),
    ParameterSpec(
        "result_timeout",
        60.0,
        "Seconds for which the result of a finished goal can still be fetched",
        Change.START,
        range=(1.0, 3600.0),
    ),
    ParameterSpec(
        "deactivate_timeout",
        5.0,
        "Seconds that running answers get to end with their partial text on deactivation",
        Change.LIVE,
        range=(0.1, 60.0),
    ),
    # -- language engine
    ParameterSpec("engine.name", "cpu", "Name of the language engine, on topics too"),
    ParameterSpec(
        "engine.n_threads",
        0,
        "Threads of the language engine. 0: all cores but one",
        range=(0, 1024),
    ),
    ParameterSpec(
        "engine.n_ctx",
        0,
        "KV cells (tokens of all histories and answers together). 0: what the streams need",
        range=(0, _INT_MAX),
    ),
    ParameterSpec(
        "engine.kv_type",
        "q8_0",
        "Number format of the KV cache",
        choices=("q8_0", "f16", "bf16", "f32"),
    ),
    ParameterSpec(
        "engine.exact",
        True,
        "Keep every answer bit-equal to the same question asked alone",
    ),
    ParameterSpec("engine.max_parallel", 4, "Answers decoded at once", range=(1, 64)),
    ParameterSpec(
        "engine.chunk_tokens", 64, "Tokens of one prefill or ingest step", range=(1, 4096)
    ),
    ParameterSpec(
        "engine.ingest_share",
        0.3,
        "Part of the engine's time that ingesting frames gets while answers are running",
        range=(0.01, 0.99),
    ),
    # -- vision
    ParameterSpec("vision.n_threads", 1, "Threads of the vision encoder", range=(1, 1024)),
    ParameterSpec(
        "vision.cache_entries", 256, "Frames in the embedding cache at most", range=(1, 1_000_000)
    ),
    ParameterSpec(
        "vision.cache_bytes",
        64 * 2**20,
        "Bytes of the embedding cache at most",
        range=(1, 2**40),
    ),
    # -- watching
    ParameterSpec(
        "hardware_id", "", "hardware_id in /diagnostics. Empty: the host's name", Change.START
    ),
    ParameterSpec(
        "diagnostics.period",
        1.0,
        "Seconds between messages on /diagnostics",
        Change.START,
        range=(0.1, 60.0),
    ),
    ParameterSpec(
        "status_period",
        1.0,
        "Seconds between messages on the status topics of streams and engines",
        Change.START,
        range=(0.1, 60.0),
    ),
    ParameterSpec(
        "silent_camera_timeout",
        3.0,
        "Seconds without a frame after which /diagnostics warns of a silent camera",
        Change.LIVE,
        range=(0.1, 3600.0),
    ),
    ParameterSpec(
        "log_throttle",
        10.0,
        "Seconds before a warning of the same kind is logged again",
        Change.LIVE,
        range=(0.0, 3600.0),
    ),
)

# Each stream NAME has these as NAME.image_topic, NAME.transport, ...
STREAM_PARAMETERS: tuple[ParameterSpec, ...] = (
    ParameterSpec("image_topic", "", "Camera topic. Empty: NAME/image_raw in the node's namespace"),
    ParameterSpec(
        "transport",
        "auto",
        "Message type of the topic: sensor_msgs/Image (raw) or CompressedImage (compressed). "
        "auto: compressed if the topic ends in /compressed",
        choices=("auto", "raw", "compressed"),
    ),
    ParameterSpec(
        "max_fps", 0.0, "Frames registered a second at most. 0: all", range=(0.0, 1000.0)
    ),
    ParameterSpec(
        "change_threshold",
        0.0,
        "Skip frames that differ less than this from the last one (mean absolute difference of "
        "pixel values, 0 to 255). 0: off",
        range=(0.0, 255.0),
    ),
    ParameterSpec(
        "max_pending_frames", 4, "Frames registered and not yet published at most", range=(1, 1024)
    ),
    ParameterSpec(
        "pending_policy",
        "latest",
        "When too many frames are pending: the newest stands by until there is room or a question "
        "needs it (latest), or is refused (reject)",
        choices=("latest", "reject"),
    ),
    ParameterSpec(
        "on_full",
        "drop_oldest",
        "When the history is full: forget the oldest frames and compute the rest again "
        "(drop_oldest), or refuse new frames (reject)",
        choices=("drop_oldest", "reject"),
    ),
    ParameterSpec(
        "max_frames", 0, "Frames in the history at most. 0: the model profile's", range=(0, 100_000)
    ),
    ParameterSpec(
        "keep_frames",
        -1,
        "Newest frames kept when the oldest are dropped. -1: the model profile's",
        range=(-1, 100_000),
    ),
    ParameterSpec(
        "max_tokens",
        0,
        "Tokens of the history at most. 0: the model profile's",
        range=(0, _INT_MAX),
    ),
    ParameterSpec(
        "max_turns",
        -1,
        "Committed turns kept when the history is full and computed again. -1: the model profile's",
        range=(-1, 10_000),
    ),
    ParameterSpec(
        "qos.reliability",
        "best_effort",
        "QoS of the subscription: sensor data by default, which fits every camera",
        choices=("best_effort", "reliable"),
    ),
    ParameterSpec("qos.depth", 5, "Images waiting in the middleware at most", range=(1, 1000)),
    ParameterSpec(
        "qos.durability",
        "volatile",
        "transient_local also receives what was published before",
        choices=("volatile", "transient_local"),
    ),
)

_NODE_SPECS = {spec.name: spec for spec in NODE_PARAMETERS}
_STREAM_SPECS = {spec.name: spec for spec in STREAM_PARAMETERS}


def find_spec(name: str) -> ParameterSpec | None:
    """The table's entry of a parameter name, those of streams included; None if there is none."""
    if name in _NODE_SPECS:
        return _NODE_SPECS[name]
    _, dot, rest = name.partition(".")
    return _STREAM_SPECS.get(rest) if dot else None


def value_problem(name: str, value: object) -> str | None:
    """What is wrong with a value beyond its type and range, or None."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.choices and value not in spec.choices:
        return f"{name} must be {spec.constraints.split(';')[0]}; not {value!r}"
    if name == "streams" and isinstance(value, list | tuple):
        return _stream_names_problem([str(item) for item in value])
    if name == "engine.name" and not _STREAM_NAME.match(str(value)):
        return f"engine.name must be lower-case letters, digits and _; not {value!r}"
    return None


def change_problem(name: str, configured: bool) -> str | None:
    """Why a parameter cannot be changed in the node's state, or None."""
    spec = find_spec(name)
    if spec is None or not configured or spec.change is not Change.UNCONFIGURED:
        return None
    return (
        f"{name} takes effect only when the node is configured: deactivate and clean up the node "
        "first, set it, then configure again"
    )


def _stream_names_problem(names: list[str]) -> str | None:
    if not names:
        return "streams must name at least one stream"
    if len(set(names)) != len(names):
        return f"streams must be different names, not {names}"
    for name in names:
        if not _STREAM_NAME.match(name):
            return (
                f"stream name {name!r} cannot be part of a topic: use at most 64 lower-case "
                "letters, digits and _, starting with a letter"
            )
        if name in _RESERVED_NAMES:
            return f"stream name {name!r} is the prefix of other parameters: choose another"
    return None
