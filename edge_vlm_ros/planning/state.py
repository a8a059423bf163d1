"""What a planner decides from: values, gathered anew for each decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AnswerLoad:
    """An answer that an engine is working on, or that was given to it and has not begun."""

    history_tokens: int
    prompt_tokens: int
    """Still to be prefilled."""
    expected_tokens: float
    """Still to be generated, as far as can be told."""
    ready_in_s: float = 0.0
    """Until its history is there."""


@dataclass(frozen=True)
class EngineState:
    """One engine that works. ``answers`` are in the order in which they were given to it; the
    first ``max_parallel`` run. ``batching``: they are decoded together, else in turns."""

    name: str
    max_parallel: int
    chunk_tokens: int
    ingest_share: float
    batching: bool
    cell_bytes: int
    free_cells: int
    """That a question's history could take, those of trunks that may be evicted included."""
    spare_cells: int
    """That nothing uses: frames displace nothing that is in use."""
    answers: tuple[AnswerLoad, ...] = ()
    ingest_tokens: int = 0
    """Of histories, ordered and not computed."""
    ingest_history_tokens: int = 0
    """Before those, on average."""
    export_bytes: int = 0
    """Ordered and not done."""
    import_bytes: int = 0
    routed: float = 0.0
    """Part of the recent questions that went to it, 0 to 1."""


@dataclass(frozen=True)
class StreamState:
    """What one stream asks of the engines, at its recent rates."""

    name: str
    ingest_engine: str
    frame_rate_hz: float
    frame_tokens: int
    history_tokens: int
    ordered_tokens: int = 0
    """Of its history, ordered on its ingest engine and not computed."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Tokens of its history that are computed, by engine."""
    stays: bool = False
    """Nobody may take it over: its ingest engine was said from outside, or has just done so."""
    question_rate_hz: float = 0.0
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0
    """Of one question and its answer, on average."""


@dataclass(frozen=True)
class UnplacedQuestion:
    """An accepted question that cannot be placed yet: its frames are not encoded. ``engine``
    ingests its stream; ``frames`` are to be encoded until it can be placed, those of other streams
    included."""

    engine: str
    load: AnswerLoad
    frames: int


@dataclass(frozen=True)
class PlanningState:
    """Everything but the question. ``importable`` has (source, destination) engine names;
    ``equal`` those of engines that compute the same bits: an answer may change between them."""

    engines: tuple[EngineState, ...]
    streams: tuple[StreamState, ...] = ()
    importable: frozenset[tuple[str, str]] = frozenset()
    encoders_busy: tuple[str, ...] = ()
    equal: frozenset[tuple[str, str]] = frozenset()
    unplaced: tuple[UnplacedQuestion, ...] = ()

    def engine(self, name: str) -> EngineState:
        """Raises KeyError."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)


@dataclass(frozen=True)
class Held:
    """What one engine has of the version a question is bound to, in tokens of its history.

    ``computed`` is there, ``submitted`` will be when all orders given are carried out,
    ``cached`` is how far snapshots in host memory would take it (0: not at all), ``reserved`` the
    cells that are kept there for accepted questions and so are not among the free ones.
    """

    computed: int = 0
    submitted: int = 0
    cached: int = 0
    reserved: int = 0


@dataclass(frozen=True)
class QuestionState:
    """A question to be placed. Empty engine names and path leave the choice to the planner."""

    stream: str
    history_tokens: int
    prompt_tokens: int
    expected_tokens: float
    encoded_in_s: float = 0.0
    """Until the last frame it sees is encoded."""
    held: Mapping[str, Held] = field(default_factory=dict)
    """By engine; an engine that is missing holds nothing."""
    engine: str = ""
    prefill_engine: str = ""
    path: str = ""
    may_hand_off: bool = True

    def of(self, engine: str) -> Held:
        return self.held.get(engine, _NOTHING)


_NOTHING = Held()
