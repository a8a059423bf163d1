"""Two streams of one model under arbitrary events, compared with a plain model of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from history_helpers import (
    FRAME_POSITIONS,
    FRAME_TOKENS,
    OPEN,
    ROOT,
    computation,
    frame,
    make_history,
    turn,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from edge_vlm_ros.history import (
    Binding,
    BindingError,
    Epoch,
    FrameItem,
    History,
    HistoryFull,
    Item,
    NewestPublished,
    NewestRegistered,
    Stamp,
    Version,
    VersionBinding,
    VersionState,
)
from edge_vlm_ros.history.history import VOID_FRAMES_PER_FRAME

STREAMS = ("table", "door")
# Most events go to one stream, so that its history becomes long enough.
streams = st.sampled_from(("table", "table", "table", "door"))


@dataclass
class EpochModel:
    items: list[Item]
    n_kept: int
    published_n: int = 0

    @property
    def caught_up(self) -> bool:
        return self.published_n >= self.n_kept


@dataclass
class StreamModel:
    """What a history must hold, in lists that are never shortened."""

    history: History
    epochs: list[EpochModel] = field(default_factory=lambda: [EpochModel([OPEN], 1)])
    numbers: list[int] = field(default_factory=lambda: [0])  # of the epochs: those of successors
    # that were given up are left out
    contents: dict[int, bytes | None] = field(default_factory=dict)  # settled; None: void
    n_frames: int = 0
    first_after_reset: int = 0
    live: set[int] = field(default_factory=lambda: {0})
    readers: list[tuple[Version, Epoch, tuple[Item, ...]]] = field(default_factory=list)

    @property
    def current(self) -> EpochModel:
        return self.epochs[-1]

    def note(self) -> None:
        """After anything that may have begun an epoch: learn its number."""
        n_new = len(self.epochs) - len(self.numbers)
        if n_new:
            begun = [epoch.number for epoch in self.history.epochs[-n_new:]]
            assert [self.numbers[-1], *begun] == sorted({self.numbers[-1], *begun})
            self.numbers += begun

    def version(self, epoch: int, n: int) -> Version:
        return Version(self.history.stream, self.numbers[epoch], n)

    @property
    def newest(self) -> Version:
        return self.version(-1, len(self.current.items))

    def is_void(self, item: Item) -> bool:
        return isinstance(item, FrameItem) and self.contents.get(item.frame_id, b"") is None

    def taking_part(self, items: list[Item]) -> list[Item]:
        return [item for item in items if not self.is_void(item)]

    def tokens(self, items: list[Item]) -> int:
        return sum(
            FRAME_TOKENS if isinstance(item, FrameItem) else len(item.tokens)
            for item in self.taking_part(items)
        )

    def positions(self, items: list[Item]) -> int:
        return sum(
            FRAME_POSITIONS if isinstance(item, FrameItem) else len(item.tokens)
            for item in self.taking_part(items)
        )

    def encoded_n(self, epoch: EpochModel) -> int:
        for n, item in enumerate(epoch.items):
            if isinstance(item, FrameItem) and item.frame_id not in self.contents:
                return n
        return len(epoch.items)

    def fits(self, item: Item) -> bool:
        limits = self.history.limits
        items = self.taking_part([*self.current.items, item])
        n_frames = sum(isinstance(i, FrameItem) for i in items)
        too_many = isinstance(item, FrameItem) and n_frames > limits.max_frames
        return self.tokens(items) <= limits.max_tokens and not too_many

    def append(self, item: Item) -> bool:
        """Whether the history takes the item."""
        limits = self.history.limits
        void = [i for i in self.current.items if self.is_void(i)]
        if len(void) >= VOID_FRAMES_PER_FRAME * limits.max_frames:
            kept = self.taking_part(self.current.items)[1:]
            self.epochs.append(EpochModel([OPEN, *kept], 1 + len(kept)))
            self.live.add(len(self.epochs) - 1)
        if not self.fits(item):
            alone = self.tokens([OPEN, item]) <= limits.max_tokens
            if limits.policy == "reject" or not alone:
                return False
            kept = self.kept(limits.max_tokens - self.tokens([OPEN, item]))
            self.epochs.append(EpochModel([OPEN, *kept], 1 + len(kept)))
            self.live.add(len(self.epochs) - 1)
        self.current.items.append(item)
        return True

    def kept(self, budget: int) -> list[Item]:
        limits = self.history.limits
        items = self.taking_part(self.current.items)[1:]
        frames = [k for k, item in enumerate(items) if isinstance(item, FrameItem)]
        turns = [k for k, item in enumerate(items) if not isinstance(item, FrameItem)]
        # What is dropped last comes last: turns before frames, the oldest first.
        order = turns[len(turns) - min(len(turns), limits.max_turns) :]
        order += frames[len(frames) - min(len(frames), limits.keep_frames) :]
        while self.tokens([items[k] for k in order]) > budget:
            del order[0]
        return [items[k] for k in sorted(order)]

    def stand_in(self) -> int | None:
        """Number of the epoch that stands in for one that is still being computed again."""
        if self.current.caught_up:
            return None
        older = range(self.first_after_reset, len(self.epochs) - 1)
        complete = [number for number in older if self.epochs[number].caught_up]
        partial = [number for number in older if self.epochs[number].published_n]
        return max(complete or partial, default=None)

    def resolve(self, binding: Binding) -> tuple[int, int] | None:
        """(epoch, n), or None where there is no such version."""
        number = len(self.epochs) - 1
        if isinstance(binding, NewestRegistered):
            return number, len(self.current.items)
        if isinstance(binding, NewestPublished):
            stand_in = self.stand_in()
            number = number if stand_in is None else stand_in
            published_n = self.epochs[number].published_n
            return (number, published_n) if published_n else None
        if isinstance(binding, Stamp):
            for n in range(len(self.current.items), 0, -1):
                item = self.current.items[n - 1]
                if not isinstance(item, FrameItem) or self.is_void(item):
                    continue
                if item.stamp_ns <= binding.stamp_ns:
                    return number, n
            return None
        epoch = self.numbers.index(binding.epoch) if binding.epoch in self.numbers else -1
        if epoch not in self.live or epoch < self.first_after_reset:
            return None
        exists = 0 <= binding.n <= len(self.epochs[epoch].items)
        return (epoch, binding.n) if exists else None

    def live_frames(self) -> set[int]:
        return {
            item.frame_id
            for number in self.live
            for item in self.epochs[number].items
            if isinstance(item, FrameItem)
        }

    def pending(self) -> list[int]:
        return sorted(self.live_frames() - set(self.contents))

    def held(self) -> set[int]:
        return {
            item.frame_id
            for _, _, items in self.readers
            for item in items
            if isinstance(item, FrameItem) and not self.is_void(item)
        }


bindings = st.one_of(
    st.just(NewestRegistered()),
    st.just(NewestPublished()),
    st.builds(Stamp, st.integers(0, 6)),
    st.builds(VersionBinding, st.integers(-1, 5), st.integers(-1, 8)),
)


class Histories(RuleBasedStateMachine):
    @initialize(
        max_tokens=st.integers(9, 60) | st.just(200),
        max_frames=st.integers(1, 3),
        keep_frames=st.integers(0, 2),
        max_turns=st.integers(0, 2),
        policy=st.sampled_from(["drop_oldest", "drop_oldest", "drop_oldest", "reject"]),
    )
    def start(self, max_tokens, max_frames, keep_frames, max_turns, policy) -> None:
        self.models = {
            stream: StreamModel(
                make_history(
                    stream=stream,
                    max_tokens=max_tokens,
                    max_frames=max_frames,
                    keep_frames=min(keep_frames, max_frames - 1),
                    max_turns=max_turns,
                    policy=policy,
                )
            )
            for stream in STREAMS
        }
        # Every encoded version ever seen, on either stream and in any epoch.
        self.identity_of: dict[object, bytes] = {}
        self.computation_of: dict[bytes, object] = {}

    # ------------------------------------------------------------ events
    @rule(stream=streams, stamp_ns=st.integers(1, 6))
    def register(self, stream: str, stamp_ns: int) -> None:
        model = self.models[stream]
        item = frame(model.n_frames, stamp_ns)
        if model.append(item):
            registered, version = model.history.register_frame(stamp_ns)
            assert registered == item
            model.note()
            assert version == model.newest
            model.n_frames += 1
        else:
            with pytest.raises(HistoryFull):
                model.history.register_frame(stamp_ns)

    @rule(stream=streams, tokens=st.lists(st.integers(50, 51), min_size=1, max_size=8))
    def commit(self, stream: str, tokens: list[int]) -> None:
        model = self.models[stream]
        if model.append(turn(*tokens, text="said")):
            version = model.history.append_turn(tuple(tokens), "said")
            model.note()
            assert version == model.newest
        else:
            with pytest.raises(HistoryFull):
                model.history.append_turn(tuple(tokens), "said")

    @precondition(lambda self: any(model.pending() for model in self.models.values()))
    @rule(data=st.data(), content=st.sampled_from([b"a", b"b"]))
    def complete(self, data: st.DataObject, content: bytes) -> None:
        busy = [model for model in self.models.values() if model.pending()]
        model = data.draw(st.sampled_from(busy))
        frame_id = data.draw(st.sampled_from(model.pending()))
        model.history.complete_frame(frame_id, content)
        model.contents[frame_id] = content

    @rule(data=st.data(), stream=streams)
    def void(self, data: st.DataObject, stream: str) -> None:
        model = self.models[stream]
        free = [k for k in model.pending() if k not in model.held()]
        if free:
            frame_id = data.draw(st.sampled_from(free))
            model.history.void_frame(frame_id)
            model.contents[frame_id] = None

    @rule(data=st.data(), stream=streams, content=st.none() | st.just(b"z"))
    def settle_again_or_too_late(self, data: st.DataObject, stream: str, content) -> None:
        model = self.models[stream]
        known = set(range(model.n_frames)) - set(model.pending())
        if not known:
            return
        frame_id = data.draw(st.sampled_from(sorted(known)))

        def settle() -> None:
            if content is None:
                model.history.void_frame(frame_id)
            else:
                model.history.complete_frame(frame_id, content)

        if frame_id in model.live_frames():
            with pytest.raises(ValueError, match="settled already"):
                settle()
        else:
            settle()

    @rule(data=st.data(), stream=streams)
    def publish(self, data: st.DataObject, stream: str) -> None:
        model = self.models[stream]
        number = data.draw(st.integers(max(0, len(model.epochs) - 3), len(model.epochs) - 1))
        epoch = model.epochs[number]
        n = data.draw(st.integers(0, model.encoded_n(epoch)))
        model.history.publish(model.version(number, n))
        if number in model.live:
            epoch.published_n = max(epoch.published_n, n)

    @rule(stream=streams)
    def publish_ahead(self, stream: str) -> None:
        """What is computed ahead may be lost again: it counts as published by nobody."""
        history = self.models[stream].history
        if history.successor is not None:
            successor = history.successor
            history.publish(Version(stream, successor.number, successor.encoded_n))

    @rule(stream=streams, content=st.sampled_from([b"a", b"b"]))
    def finish_everything(self, stream: str, content: bytes) -> None:
        model = self.models[stream]
        for frame_id in model.pending():
            model.history.complete_frame(frame_id, content)
            model.contents[frame_id] = content
        model.history.publish(model.newest)
        model.current.published_n = len(model.current.items)

    @rule(stream=streams, n=st.integers(1, 4))
    def fill_up(self, stream: str, n: int) -> None:
        for stamp_ns in range(1, n + 1):
            self.register(stream, stamp_ns)

    @rule(stream=streams)
    def reset(self, stream: str) -> None:
        model = self.models[stream]
        model.epochs.append(EpochModel([OPEN], 1))
        model.first_after_reset = len(model.epochs) - 1
        model.live.add(model.first_after_reset)
        version = model.history.reset()
        model.note()
        assert version == model.newest

    # ------------------------------------------------------------ questions
    @rule(stream=streams, binding=bindings)
    def bind(self, stream: str, binding: Binding) -> None:
        model = self.models[stream]
        expected = model.resolve(binding)
        if expected is None:
            with pytest.raises(BindingError):
                model.history.bind(binding)
            return
        version = model.history.bind(binding)
        assert version == model.version(*expected)
        epoch = model.history.epoch(version.epoch)
        model.readers.append((version, epoch, epoch.items[: version.n]))

    @precondition(lambda self: any(model.readers for model in self.models.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from([m for m in self.models.values() if m.readers]))
        reader = data.draw(st.sampled_from(model.readers))
        model.readers.remove(reader)
        model.history.release(reader[0])

    @rule(stream=streams)
    def pop_retired(self, stream: str) -> None:
        model = self.models[stream]
        read = {model.numbers.index(version.epoch) for version, _, _ in model.readers}
        needed = {len(model.epochs) - 1} | read
        stand_in = model.stand_in()
        if stand_in is not None:
            needed.add(stand_in)
        popped = {epoch.number for epoch in model.history.pop_retired()}
        assert popped == {model.numbers[k] for k in model.live - needed}
        given_up = {epoch.number for epoch in model.history.pop_given_up()}
        assert not given_up & set(model.numbers)
        assert model.history.successor is None or model.history.successor.number not in given_up
        model.live = needed
        assert len(model.live) <= 2 + len(read)
        for frame_id in set(range(model.n_frames)) - model.live_frames():
            with pytest.raises(KeyError):
                model.history.content(frame_id)

    # ------------------------------------------------------------ what always holds
    @invariant()
    def epochs_are_what_the_model_says(self) -> None:
        """Append-only: the model's lists only ever grow, and its numbers follow from them."""
        for model in self.models.values():
            history = model.history
            numbers = [model.numbers[k] for k in sorted(model.live)]
            assert [epoch.number for epoch in history.epochs] == numbers
            assert history.current.number == model.numbers[-1]
            for epoch in history.epochs:
                expected = model.epochs[model.numbers.index(epoch.number)]
                assert list(epoch.items) == expected.items
                assert epoch.encoded_n == model.encoded_n(expected)
                assert epoch.published_n == expected.published_n
                assert epoch.registered_tokens == model.tokens(expected.items)
                for n in range(epoch.encoded_n + 1):
                    assert epoch.tokens(n) == model.tokens(expected.items[:n])
                    assert epoch.positions(n) == model.positions(expected.items[:n])
                    assert list(epoch.computed(0, n)) == model.taking_part(expected.items[:n])

    @invariant()
    def identities_are_equal_iff_the_computations_are(self) -> None:
        for model in self.models.values():
            for epoch in model.history.epochs:
                items = model.epochs[model.numbers.index(epoch.number)].items
                for n in range(epoch.encoded_n + 1):
                    described = computation(ROOT, items[:n], model.contents)
                    identity = epoch.identity(n)
                    assert self.identity_of.setdefault(described, identity) == identity
                    assert self.computation_of.setdefault(identity, described) == described

    @invariant()
    def a_successor_is_in_no_use_and_needs_no_other_frames(self) -> None:
        for model in self.models.values():
            successor = model.history.successor
            if successor is not None:
                assert successor.number > model.numbers[-1]
                assert set(successor.items) <= set(model.taking_part(model.current.items))

    @invariant()
    def limits_are_respected(self) -> None:
        for model in self.models.values():
            current, limits = model.history.current, model.history.limits
            assert current.registered_tokens <= limits.max_tokens
            assert len(current.frames(len(current))) <= limits.max_frames

    @invariant()
    def what_questions_are_bound_to_stays(self) -> None:
        for model in self.models.values():
            history = model.history
            for version, epoch, items in model.readers:
                assert history.epoch(version.epoch) is epoch
                assert epoch.items[: version.n] == items
                assert version.n <= history.needed_n(epoch)
                if history.state(version) is not VersionState.REGISTERED:
                    for held in epoch.computed(0, version.n):
                        if isinstance(held, FrameItem):
                            expected = model.contents[held.frame_id]
                            assert history.content(held.frame_id) == expected

    @invariant()
    def the_newest_published_version_never_reaches_behind_a_reset(self) -> None:
        for model in self.models.values():
            history = model.history
            expected = model.resolve(NewestPublished())
            if expected is None:
                with pytest.raises(BindingError):
                    history.bind(NewestPublished())
                continue
            version = history.bind(NewestPublished())
            history.release(version)
            assert version == model.version(*expected)
            assert version.epoch >= model.numbers[model.first_after_reset]
            assert history.state(version) is VersionState.PUBLISHED
            assert version.n <= history.needed_n(history.epoch(version.epoch))


Histories.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
