"""Puts the parts of a runtime together."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.history import History, HistoryLimits, root_identity
from edge_vlm_ros.model_profile import sha256_file, template_identity
from edge_vlm_ros.planning.costs import CostModel
from edge_vlm_ros.planning.learning import CostLearner
from edge_vlm_ros.planning.policies import make_policy
from edge_vlm_ros.vision.embedding_cache import EmbeddingCache
from edge_vlm_ros.vision.encoder import Encoder
from edge_vlm_ros.vision.opening import OpenedEncoder
from edge_vlm_ros.vision.worker import VisionWorkers

from .calibration import stored_or_calibrated
from .config import ConfigError, RuntimeConfig
from .coordinator import Coordinator
from .engine_maker import EngineMaker, EngineSizes
from .engine_slots import EngineSlots
from .frame_segments import WrapperRows, wrapper_rows
from .listener import RuntimeListener
from .planner import Planner
from .probe import probe_pairs
from .prompt import PromptTemplate, prompt_template
from .sizing import TRUNKS_PER_STREAM, answer_cells, context_cells, history_limits
from .status import PairProbe
from .stream import StreamState, VisionPort
from .trunks import Trunks

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """A loaded runtime; the coordinator's loop is not running yet."""

    coordinator: Coordinator
    slots: EngineSlots
    probes: tuple[PairProbe, ...]
    encoder: OpenedEncoder
    vision: VisionWorkers
    cache: EmbeddingCache
    costs: CostModel
    """What work cost at start."""


def assemble(
    config: RuntimeConfig,
    maker: EngineMaker,
    opened: OpenedEncoder,
    listener: RuntimeListener,
    undo: ExitStack,
    report: Callable[[str, float], None],
) -> Parts:
    """Start the engines and the vision workers; ``undo`` gets what stops them again, ``report``
    what is being measured and how far it is.

    Raises ConfigError or EngineError.
    """
    encoder = opened.encoders[0]
    _check_model(config, encoder, maker.vocabulary)
    for reason in opened.refused:
        _logger.warning("%s", reason)
    model, inbox = maker.vocabulary, queue.SimpleQueue[object]()
    prompt = prompt_template(config.profile, model)
    limits = [
        history_limits(stream.history, config.profile, prompt, config.questions)
        for stream in config.streams
    ]
    maker.set_sizes(_sizes(config, limits, prompt))
    placement = config.placement
    slots = EngineSlots(
        config.engines, maker.make, inbox.put, placement.retry_s, placement.max_retry_s
    )
    undo.callback(slots.close)
    slots.start_all()
    probes = probe_pairs(slots, inbox, prompt, answer_cells(config.questions))
    _note_outcomes(probes, slots, listener)
    costs = stored_or_calibrated(config, slots, inbox, prompt, encoder, report)
    cache = EmbeddingCache(config.vision.cache_entries, config.vision.cache_bytes)
    vision = VisionWorkers(
        opened.encoders,
        cache,
        inbox.put,
        resize=config.profile.encoder.resize,
        pad_value=config.profile.encoder.pad_value,
    )
    undo.callback(vision.close)
    coordinator = wire(
        config,
        inbox=inbox,
        slots=slots,
        vision=vision,
        cache=cache,
        prompt=prompt,
        tokenize=lambda text: model.tokenize(text, parse_special=False),
        wrapper=wrapper_rows(prompt.frame_shape, model.path, model.n_embd_frame),
        root=_root_identity(config),
        costs=costs,
        listener=listener,
    )
    return Parts(coordinator, slots, probes, opened, vision, cache, costs)


def wire(
    config: RuntimeConfig,
    *,
    inbox: queue.SimpleQueue[object],
    slots: EngineSlots,
    vision: VisionPort,
    cache: EmbeddingCache,
    prompt: PromptTemplate,
    tokenize: Callable[[str], tuple[int, ...]],
    wrapper: WrapperRows | None,
    root: bytes,
    costs: CostModel,
    listener: RuntimeListener,
    clock: Callable[[], float] = time.monotonic,
) -> Coordinator:
    """A coordinator with its streams over running engines and a vision worker.

    ``wrapper`` are the tokens around a frame; ``root`` is the identity of the empty prefix. Raises
    ConfigError.
    """
    limits = [
        history_limits(stream.history, config.profile, prompt, config.questions)
        for stream in config.streams
    ]
    streams: dict[str, StreamState] = {}
    trunks = Trunks(
        slots,
        config.placement,
        answer_cells(config.questions),
        lambda record: streams[record.trunk.stream].grows(record),
        clock,
    )
    for stream, limit in zip(config.streams, limits, strict=True):
        streams[stream.name] = StreamState(
            stream,
            History(stream.name, root, prompt.open_tokens, prompt.frame_shape, limit),
            config.ingest_engine(stream),
            slots,
            trunks,
            vision,
            cache,
            wrapper,
            clock,
        )
    planning = config.planning
    planner = Planner(
        make_policy(planning.policy, slots.names, tuple(streams), planning.objective),
        planning.objective,
        CostLearner(costs),
        streams,
        slots,
        trunks,
        clock,
    )
    return Coordinator(
        inbox,
        streams.values(),
        slots,
        trunks,
        planner,
        cache,
        prompt,
        tokenize,
        config.questions,
        listener,
        clock,
    )


def _check_model(config: RuntimeConfig, encoder: Encoder, model: LlamaModel) -> None:
    if encoder.n_embd != model.n_embd_frame:
        raise ConfigError(
            f"the encoder's embeddings have {encoder.n_embd} values, the language model "
            f"{model.path.name} takes {model.n_embd_frame}: they do not belong together"
        )
    if model.has_grids != (config.profile.encoder.grid is not None):
        raise ConfigError(
            f"the positions of {model.path.name} have rows and columns (M-RoPE): say how the "
            "tokens of a frame lie, encoder.grid: [rows, columns]"
            if model.has_grids
            else f"{model.path.name} has no M-RoPE: remove encoder.grid"
        )
    trained = config.profile.language.context_tokens
    if trained > model.n_ctx_train:
        raise ConfigError(
            f"the profile says that {model.path.name} was trained on {trained} positions, the "
            f"file says {model.n_ctx_train}: correct language.context_tokens"
        )


def _sizes(
    config: RuntimeConfig, limits: Sequence[HistoryLimits], prompt: PromptTemplate
) -> EngineSizes:
    max_pending = config.questions.max_pending
    return EngineSizes(
        max_trunks=TRUNKS_PER_STREAM * len(limits) + max_pending,
        max_branches=max_pending,
        max_exports=len(limits) + max_pending,
        answer_cells=answer_cells(config.questions),
        stop_tokens=prompt.stop_tokens,
        n_ctx=lambda engine: context_cells(engine, limits, config.questions),
    )


def _note_outcomes(
    probes: Sequence[PairProbe], slots: EngineSlots, listener: RuntimeListener
) -> None:
    """Which engines compute alike; say loudly which cannot exchange KV."""
    for probe in probes:
        if probe.outcome == "equal":
            slots[probe.destination].equal.add(probe.source)
        if probe.outcome == "incompatible":
            slots[probe.destination].incompatible.add(probe.source)
            _logger.warning(
                "engine %s cannot import from engine %s, histories are replayed instead: %s",
                probe.destination,
                probe.source,
                probe.detail,
            )
            listener.pair_incompatible(probe.source, probe.destination, probe.detail)


def _root_identity(config: RuntimeConfig) -> bytes:
    profile = config.profile
    model_digest = profile.language.sha256 or sha256_file(profile.language.file)
    return root_identity(model_digest.encode(), template_identity(profile))
