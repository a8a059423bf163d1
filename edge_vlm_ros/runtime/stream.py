"""One stream: its history and its frames on their way through the encoder to an engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from edge_vlm_ros.engines.moving_average import MovingAverage
from edge_vlm_ros.engines.protocol import Origin, Segment, TokenSegment, VersionComputed
from edge_vlm_ros.history import Epoch, FrameItem, History, HistoryFull, Version, VersionState
from edge_vlm_ros.placement.residency import TrunkRecord
from edge_vlm_ros.planning.rates import EventRate
from edge_vlm_ros.vision.change_gate import ChangeGate, FrameRateGate
from edge_vlm_ros.vision.embedding_cache import EmbeddingCache, EmbeddingKey
from edge_vlm_ros.vision.encoder import Embeddings
from edge_vlm_ros.vision.events import EncodeRequest, FrameEncoded, FrameFailed

from .config import StreamConfig
from .engine_slots import EngineSlots
from .frame_segments import WrapperRows, frame_segments
from .messages import FrameArrived
from .status import StreamStatus
from .trunks import Trunks

MAX_APPEND_ATTEMPTS = 3
_RATE_WINDOW = 20


class VisionPort(Protocol):
    """What a stream needs of a vision worker."""

    def submit(self, request: EncodeRequest) -> None: ...


class Drop(NamedTuple):
    """A frame that is not (any more) part of the history."""

    reason: str
    text: str


class Embedded(NamedTuple):
    key: EmbeddingKey
    embeddings: Embeddings


class StreamState:
    """Owned by the coordinator's thread; every method is one step of it and returns at once."""

    def __init__(
        self,
        config: StreamConfig,
        history: History,
        preferred_engine: str,
        slots: EngineSlots,
        trunks: Trunks,
        vision: VisionPort,
        cache: EmbeddingCache,
        wrapper: WrapperRows | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._clock = clock
        self.history = history
        self.preferred_engine = preferred_engine
        """The engine that is to ingest the stream while it works."""
        self.pinned = bool(config.ingest_engine)
        """Whether that was said from outside; otherwise ``choose_engine`` may change it."""
        self.taken_over = False
        """An engine goes on with what another one had left, and is not done with that."""
        self.choose_engine: Callable[[str], str] = lambda name: self.preferred_engine
        """Called with the stream's name when there is something new to ingest."""
        self.is_idle: Callable[[str], bool] = lambda engine: True
        """Whether an engine has no question; asked before anything is computed ahead."""
        self.on_registered: Callable[[FrameArrived], None] = lambda frame: None
        """Called with every frame that got its place in the history."""
        self.frame_rate = EventRate()
        self._slots = slots
        self._trunks = trunks
        self._vision = vision
        self._cache = cache
        self._wrapper = wrapper
        self._rate_gate = FrameRateGate(config.max_fps)
        self._change_gate = ChangeGate(config.change_threshold)
        self.first_epoch = 0
        """The epoch that the last reset began."""
        self._pending: set[int] = set()
        self._standby: FrameArrived | None = None
        self._embedded: dict[int, Embedded] = {}
        self._received = self._registered = self._dropped = 0
        self._skipped = self._failed = self._invalid = 0
        self._arrivals: deque[float] = deque(maxlen=_RATE_WINDOW)
        self._register_ms, self._encode_ms = MovingAverage(), MovingAverage()
        self._ingest_ms = MovingAverage()

    # ---------------------------------------------------------------- frames
    def receive(self, frame: FrameArrived) -> list[Drop]:
        """Register a frame, or put it on standby, or refuse it; returns the frames dropped for it.

        At most ``max_pending_frames`` frames are on their way from registered to published. With
        the policy ``latest`` the newest frame beyond that stands by, in the place of an older one,
        and is registered when there is room or when a question asks for it.
        """
        self._received += 1
        self._arrivals.append(frame.received_at)
        if not self._rate_gate.passes(frame.received_at) or not self._change_gate.passes(frame.rgb):
            self._skipped += 1
            return []
        drops = self.admit_standby()  # it came before
        if self._standby is None and self._has_room():
            return [*drops, *self._register(frame)]
        if self.config.pending_policy == "reject":
            text = f"{len(self._pending)} frames are not published yet: a new one was refused"
            return [*drops, self._drop("pending_full", text)]
        replaced, self._standby = self._standby, frame
        if replaced is not None:
            self._dropped += 1
            text = f"{len(self._pending)} frames are not published yet: a newer one took its place"
            drops.append(Drop("pending_replaced", text))
        return drops

    def refuse(self, frame: FrameArrived, reason: str, text: str) -> list[Drop]:
        """Count a frame that is not even looked at."""
        self._received += 1
        self._dropped += 1
        self._arrivals.append(frame.received_at)
        return [Drop(reason, text)]

    def note_invalid(self, now: float) -> None:
        """Count a camera message that could not be converted to a frame."""
        self._received += 1
        self._invalid += 1
        self._arrivals.append(now)

    def admit_standby(self, *, for_question: bool = False) -> list[Drop]:
        """Register the frame on standby if there is room. A question may go over the limit, up
        to twice: it is to see everything that came before it."""
        within = len(self._pending) < 2 * self.config.max_pending_frames
        may_go_over = for_question and within and not self.history.must_wait()
        if self._standby is None or not (self._has_room() or may_go_over):
            return []
        frame, self._standby = self._standby, None
        return self._register(frame)

    def forget_standby(self) -> None:
        if self._standby is not None:
            self._standby = None
            self._dropped += 1

    def is_empty(self, version: Version) -> bool:
        """Whether a version holds nothing that a question could be about."""
        epoch = self.history.epoch(version.epoch)
        return not epoch.frames(version.n) and not epoch.turns(version.n)

    def _has_room(self) -> bool:
        enough = len(self._pending) >= self.config.max_pending_frames
        return not enough and not self.history.must_wait()

    def _register(self, frame: FrameArrived) -> list[Drop]:
        """Give the frame its place in the history and hand it to the encoder."""
        try:
            item, _ = self.history.register_frame(frame.stamp_ns)
        except HistoryFull as error:
            return [self._drop("history_full", str(error))]
        self._pending.add(item.frame_id)
        self._registered += 1
        now = self._clock()
        self._register_ms.add(1000.0 * (now - frame.received_at))
        self.frame_rate.add(now)
        self._vision.submit(EncodeRequest(self.config.name, item.frame_id, frame.rgb))
        self.on_registered(frame)
        return []

    def _drop(self, reason: str, text: str) -> Drop:
        self._dropped += 1
        self._change_gate.reset()  # what the history never saw is no measure of change
        return Drop(reason, text)

    def complete(self, event: FrameEncoded) -> None:
        """A frame is encoded. Its pin in the cache belongs to the history while that holds it."""
        if not event.cache_hit:
            self._encode_ms.add(1000.0 * event.encode_s)
        if event.frame_id not in self.history.live_frames():
            self._cache.unpin(event.key)
            return
        self._embedded[event.frame_id] = Embedded(event.key, event.embeddings)
        self.history.complete_frame(event.frame_id, event.key.encoder + event.key.pixels)

    def fail(self, event: FrameFailed) -> None:
        """A frame cannot be encoded: the history goes on without it."""
        self._pending.discard(event.frame_id)
        self._failed += 1
        self._change_gate.reset()
        self.history.void_frame(event.frame_id)

    # ---------------------------------------------------------------- ingestion
    @property
    def name(self) -> str:
        return self.config.name

    @property
    def ingest_engine(self) -> str | None:
        """The engine that computes the frames now: another one while the preferred has failed."""
        if self._slots[self.preferred_engine].ready:
            return self.preferred_engine
        return next((slot.config.name for slot in self._slots.ready), None)

    def grows(self, record: TrunkRecord) -> bool:
        """Whether a trunk of this stream is one that new frames are appended to, for questions."""
        return record.engine == self.ingest_engine and not record.ahead

    def ingest(self) -> None:
        """Have the engine compute what is encoded, and let go of what nobody needs."""
        for epoch in self.history.pop_given_up():
            self._trunks.forget_epoch(self.name, epoch.number)
        self._publish_computed_ahead()
        if not self.pinned and self._has_news():
            self.preferred_engine = self.choose_engine(self.name)
        self._have_computed()
        self._release_retired()

    def let_take_over(self, engine: str) -> None:
        """Have ``engine`` compute the frames from now on, those included that the one before was
        told to compute and has not."""
        before, epoch = self.ingest_engine, self.history.current
        self.preferred_engine, self.taken_over = engine, True
        self._have_computed()
        if before is not None and before != self.ingest_engine:
            self._trunks.cut(self.name, epoch.number, before)

    def _have_computed(self) -> None:
        """Epochs are computed one after the other, oldest first, so that at most two trunks of a
        stream take cells of the engine at a time."""
        engine = self.ingest_engine
        behind = engine is None
        for epoch in self.history.epochs:
            if not self.history.wants_kv(epoch):
                self._trunks.forget_epoch(self.name, epoch.number)
                continue
            needed = self.history.needed_n(epoch)
            # An old epoch that no question waits for has what it needs, or is not worth a rebuild.
            if behind or engine is None or not self.history.has_waiting(epoch):
                continue
            target = min(epoch.encoded_n, needed)
            behind = self._trunks.ingest(self, epoch, target, engine) < needed

    def _publish_computed_ahead(self) -> None:
        """What engines hold of an epoch that has just begun."""
        epoch = self.history.current
        if not epoch.caught_up:
            records = self._trunks.table.of_epoch(self.name, epoch.number)
            held = max((record.computed.n for record in records), default=0)
            self.history.publish(Version(self.name, epoch.number, held))

    def compute_ahead(self) -> None:
        """Have an idle engine compute one more item of the next epoch: the one that has begun it,
        or the one that ingests the stream, or else one that computes the same. Only when all that
        is in use has been computed."""
        successor, current = self.history.successor, self.history.current
        engine = self.ingest_engine
        if successor is None or engine is None or current.published_n < current.encoded_n:
            return
        if sum(self.history.wants_kv(epoch) for epoch in self.history.epochs) > 1:
            return
        ready = [slot.config.name for slot in self._slots.ready]
        equal = [name for name in ready if self._slots.are_equal(engine, name)]
        begun = [r.engine for r in self._trunks.table.of_epoch(self.name, successor.number)]
        idle = [name for name in begun or (engine, *equal) if self.is_idle(name)]
        if idle:
            self._trunks.compute_ahead(self, successor, idle[0])

    def _has_news(self) -> bool:
        """Whether something is encoded that the ingest engine was not told to compute, and is not
        about to be, when what it imports has come."""
        epoch, engine = self.history.current, self.ingest_engine
        if engine is None:
            return False
        record = self._trunks.table.get(engine, self.name, epoch.number)
        if record is None:
            return epoch.encoded_n > 0
        is_importing = record.export is not None or record.importing.n > record.computed.n
        return not is_importing and epoch.encoded_n > record.submitted.n

    @property
    def is_encoding(self) -> bool:
        """Whether frames wait for the encoder or are in it."""
        return any(epoch.encoded_n < len(epoch) for epoch in self.history.epochs)

    @property
    def frame_tokens(self) -> int:
        """Tokens that a frame takes."""
        return self.history.frame_tokens

    def computed(self, record: TrunkRecord, event: VersionComputed) -> Version | None:
        """An engine holds finished KV of a version: it is published. None when the history let
        go of its epoch meanwhile."""
        if event.origin is Origin.COMPUTED:
            self._ingest_ms.add(1000.0 * event.seconds)
        number = record.trunk.epoch
        version = Version(self.name, number, event.n)
        epoch = next((e for e in self.history.epochs if e.number == number), None)
        before = 0 if epoch is None else epoch.published_n
        self.history.publish(version)
        if epoch is None:
            return None
        if epoch.published_n >= epoch.encoded_n:
            self.taken_over = False
        for item in epoch.items[: event.n]:  # some may have been computed ahead
            if isinstance(item, FrameItem):
                self._pending.discard(item.frame_id)
        return version if event.n > before else None

    def clear(self) -> Version:
        """Forget everything; questions bound before keep what they see."""
        self._change_gate.reset()
        self.forget_standby()
        version = self.history.reset()
        self.first_epoch = version.epoch
        self.ingest()
        return version

    def segments(self, epoch: Epoch, n: int) -> tuple[Segment, ...]:
        """What item ``n`` (from 1) of an epoch is computed from; nothing for a void frame."""
        segments: list[Segment] = []
        for item in epoch.computed(n - 1, n):
            if isinstance(item, FrameItem):
                embeddings = self._embedded[item.frame_id].embeddings
                segments += frame_segments(item, embeddings, self._wrapper)
            else:
                segments.append(TokenSegment(item.tokens))
        return tuple(segments)

    def _release_retired(self) -> None:
        for epoch in self.history.pop_retired():
            self._trunks.forget_epoch(self.name, epoch.number)
        live = self.history.live_frames()
        self._pending &= live
        for frame_id in [i for i in self._embedded if i not in live]:
            self._cache.unpin(self._embedded.pop(frame_id).key)

    # ---------------------------------------------------------------- readings
    def describe(self) -> list[str]:
        """One line per item of the current history, oldest first."""
        epoch = self.history.current
        lines = []
        for n, item in enumerate(epoch.items, 1):
            state = epoch.state(n).name.lower()
            if isinstance(item, FrameItem):
                stamp = f"{item.stamp_ns / 1e9:.3f} s"
                text = f"frame {item.frame_id}, stamp {stamp}"
            else:
                text = f"{item.role.value} {item.text!r}"
            lines.append(f"{epoch.number}.{n} {state}: {text}, {item.n_tokens} tokens")
        return lines

    def status(self, now: float) -> StreamStatus:
        epoch = self.history.current
        return StreamStatus(
            stream=self.config.name,
            registered=self.history.newest(VersionState.REGISTERED),
            encoded=self.history.newest(VersionState.ENCODED),
            published=self.history.newest(VersionState.PUBLISHED),
            frames=len(epoch.frames(len(epoch))),
            turns=len(epoch.turns(len(epoch))),
            tokens=epoch.registered_tokens,
            max_tokens=self.history.limits.max_tokens,
            pending_frames=len(self._pending),
            max_pending_frames=self.config.max_pending_frames,
            frames_received=self._received,
            frames_registered=self._registered,
            frames_dropped=self._dropped,
            frames_skipped=self._skipped,
            frames_invalid=self._invalid,
            frames_failed=self._failed,
            frame_rate_hz=self._frame_rate(now),
            frame_age_s=now - self._arrivals[-1] if self._arrivals else -1.0,
            register_ms=self._register_ms.value,
            encode_ms=self._encode_ms.value,
            ingest_ms=self._ingest_ms.value,
            ingest_engine=self.ingest_engine or self.preferred_engine,
        )

    def _frame_rate(self, now: float) -> float:
        """Over the last arrivals; a silence longer than usual brings it down."""
        if len(self._arrivals) < 2 or self._arrivals[-1] == self._arrivals[0]:
            return 0.0
        intervals = len(self._arrivals) - 1
        span = self._arrivals[-1] - self._arrivals[0]
        return intervals / max(span, now - self._arrivals[0] - 2 * span / intervals)
