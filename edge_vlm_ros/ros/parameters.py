"""The node's parameters: one table, from which declarations, checks and documentation are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

Value = bool | int | float | str | list[str] | list[int]

MAX_PENDING_QUESTIONS = 64
"""Upper end of questions.max_pending: the executor has a thread for each."""

_INT_MAX = 2**31 - 1


class Change(Enum):
    """When a parameter may be changed; the value says it to the user."""

    START = "only when the node is started"
    UNCONFIGURED = "only while the node is unconfigured: clean it up first"
    LIVE = "at any time"


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter. ``range`` is (least, greatest) of a number or of each number of a list,
    ``choices`` those of a text."""

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
            # rclpy takes an empty list for one of bytes; value_problem checks instead.
            dynamic_typing=self.default == [],
        )
        if isinstance(self.default, list):
            return descriptor
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
    ParameterSpec(
        "questions.commit_order",
        "completion",
        "Order in which answers enter the history of their stream: as they end (completion), or as "
        "they were asked (arrival): an answer to be committed then waits for earlier ones",
        choices=("completion", "arrival"),
    ),
    # -- language engines
    ParameterSpec("engines", ["cpu"], "Names of the language engines, each with parameters below"),
    ParameterSpec(
        "allow_remote",
        False,
        "Let engines use RPC servers on other computers. RPC has neither authentication nor "
        "encryption: whoever reaches the port can read and change what the engine computes, and "
        "run code on the server. Only for networks that you trust",
    ),
    # -- placement of KV
    ParameterSpec(
        "placement.snapshot_entries",
        64,
        "Exported ranges of KV kept in host memory at most",
        range=(0, 1_000_000),
    ),
    ParameterSpec(
        "placement.snapshot_bytes",
        256 * 2**20,
        "Bytes of exported KV kept in host memory at most",
        range=(0, 2**40),
    ),
    ParameterSpec(
        "placement.prefix_entries",
        4096,
        "Prefixes of histories remembered to find equal ones at most",
        range=(0, 1_000_000),
    ),
    ParameterSpec(
        "placement.retry_s",
        1.0,
        "Seconds until a failed engine is started again; twice as long after each further failure",
        range=(0.01, 3600.0),
    ),
    ParameterSpec(
        "placement.max_retry_s",
        60.0,
        "Seconds between two starts of a failed engine at most",
        range=(0.01, 86400.0),
    ),
    # -- planning
    ParameterSpec(
        "planning.policy",
        "sdep",
        "How engines are chosen. sdep: complete ways are compared by predicted times. The others "
        "are baselines: single:ENGINE (everything there, one answer at a time), batched:ENGINE "
        "(everything there), idle_first (the first idle engine), isolated (streams are dealt to "
        "engines, nothing is moved), round_robin (questions are dealt to engines)",
        Change.LIVE,
    ),
    ParameterSpec(
        "planning.objective",
        "completion",
        "What sdep makes early: first token and end of an answer (completion) or its first token "
        "alone (first_token)",
        Change.LIVE,
        choices=("completion", "first_token"),
    ),
    ParameterSpec(
        "planning.calibration",
        "auto",
        "Measure the engines' costs when the node is configured: unless it was done before with "
        "the same model, engines and machine (auto), always, or never: then rough guesses are "
        "corrected as work is done",
        choices=("auto", "always", "never"),
    ),
    ParameterSpec(
        "planning.calibration_folder",
        "",
        "Folder that keeps what was measured. Empty: ~/.cache/edge_vlm_ros/calibration",
    ),
    ParameterSpec(
        "planning.publish_plans",
        True,
        "Publish every decision on ~/plans. Without subscribers it costs next to nothing",
        Change.LIVE,
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
        "annotated_images",
        False,
        "Publish the last question and answer of each stream, drawn on the frame they are about. "
        "Keeps up to 16 frames (64 MiB) of each stream; draws only while somebody subscribes",
    ),
    ParameterSpec(
        "power_sensor",
        "auto",
        "What measures energy_j of ~/metrics: the board's INA chip or else RAPL (auto), nothing "
        "(off), or the path of a file power*_input, power*_average (microwatts), energy*_input or "
        "energy_uj (microjoules)",
        Change.START,
    ),
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

# Each engine NAME has these as engine.NAME.device, engine.NAME.n_threads, ...
ENGINE_PARAMETERS: tuple[ParameterSpec, ...] = (
    ParameterSpec(
        "device",
        "cpu",
        "What computes: cpu, vulkan:N, cuda:N, rpc (a server process on this computer that the "
        "node starts and watches), rpc:HOST:PORT, or any name that "
        "`ros2 run edge_vlm_ros devices` lists",
    ),
    ParameterSpec(
        "n_threads",
        0,
        "Threads. 0: one for each of `cpus`; without those, all cores but one",
        range=(0, 1024),
    ),
    ParameterSpec(
        "cpus", [], "Cores that the threads may run on, by number. Empty: all", range=(0, 4095)
    ),
    ParameterSpec(
        "n_ctx",
        0,
        "KV cells (tokens of all histories and answers together). 0: what the streams need",
        range=(0, _INT_MAX),
    ),
    ParameterSpec(
        "kv_type",
        "q8_0",
        "Number format of the KV cache",
        choices=("q8_0", "f16", "bf16", "f32"),
    ),
    ParameterSpec("exact", True, "Keep every answer bit-equal to the same question asked alone"),
    ParameterSpec("max_parallel", 4, "Answers decoded at once", range=(1, 64)),
    ParameterSpec("chunk_tokens", 64, "Tokens of one prefill or ingest step", range=(1, 4096)),
    ParameterSpec(
        "transfer_tokens",
        256,
        "Tokens of KV exported or imported in one step: answers running meanwhile wait that long",
        range=(1, 65536),
    ),
    ParameterSpec(
        "repack",
        True,
        "Let an engine on the CPU keep a rearranged copy of the weights, in which it computes "
        "faster. false: no copy, the memory of the model's file is all it takes",
    ),
    ParameterSpec(
        "ingest_share",
        0.3,
        "Part of the engine's time that ingesting frames gets while answers are running",
        range=(0.01, 0.99),
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
        "ingest_engine",
        "",
        "Engine that computes the frames. Empty: the planning policy chooses. Changed while the "
        "node is configured, ingestion moves there and questions go on meanwhile",
        Change.LIVE,
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
