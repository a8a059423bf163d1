from __future__ import annotations

import itertools
import queue
import threading

import numpy as np
import pytest
from vision_helpers import FakeEncoder, frame

from edge_vlm_ros.vision.embedding_cache import EmbeddingCache, EmbeddingKey
from edge_vlm_ros.vision.errors import CacheError, WorkerClosedError
from edge_vlm_ros.vision.events import EncodeRequest, FrameEncoded, FrameFailed, VisionEvent
from edge_vlm_ros.vision.preprocess import pixel_digest
from edge_vlm_ros.vision.worker import VisionWorkers


class Bench:
    """A worker on a fake encoder, and the events it emitted."""

    def __init__(self, max_entries: int = 100, **options) -> None:
        self.encoder = FakeEncoder()
        self.cache = EmbeddingCache(max_entries, 1 << 20)
        self.events: queue.Queue[VisionEvent] = queue.Queue()
        options.setdefault("resize", "stretch")
        self.worker = VisionWorkers([self.encoder], self.cache, self.events.put, **options)

    def submit(self, frame_id: int, rgb, stream: str = "table") -> None:
        self.worker.submit(EncodeRequest(stream, frame_id, rgb))

    def next(self) -> VisionEvent:
        return self.events.get(timeout=30)

    def hold(self) -> None:
        """Keep the encoder inside the frame it is given next."""
        self.encoder.gate.clear()
        self.encoder.entered.clear()

    def release(self) -> None:
        self.encoder.gate.set()


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.release()
    bench.worker.close()


def test_frames_are_encoded_in_order_on_one_thread_of_its_own(bench: Bench) -> None:
    for number in range(20):
        bench.submit(number, frame(100 + number), stream=f"camera{number % 2}")
    events = [bench.next() for _ in range(20)]
    assert [(e.stream, e.frame_id) for e in events] == [(f"camera{n % 2}", n) for n in range(20)]
    assert bench.encoder.encoded == list(range(100, 120))
    assert len(bench.encoder.threads) == 1
    assert threading.get_ident() not in bench.encoder.threads


def test_an_encoded_frame_lies_in_the_cache_pinned_once(bench: Bench) -> None:
    bench.submit(5, frame(40))
    event = bench.next()
    assert isinstance(event, FrameEncoded)
    assert event.key == EmbeddingKey(b"fake", pixel_digest(frame(40)))
    assert event.embeddings.tolist() == [[40.0] * 3, [-40.0] * 3]
    assert event.embeddings is bench.cache.get(event.key)
    assert not event.embeddings.flags.writeable
    assert not event.cache_hit and event.encode_s >= 0
    bench.cache.unpin(event.key)
    with pytest.raises(CacheError):
        bench.cache.unpin(event.key)


def test_identical_frames_are_encoded_once_and_each_event_owns_a_pin(bench: Bench) -> None:
    for number in range(3):
        bench.submit(number, frame(40), stream=f"camera{number}")
    events = [bench.next() for _ in range(3)]
    assert bench.encoder.encoded == [40]
    assert [e.cache_hit for e in events] == [False, True, True]
    assert [e.encode_s for e in events[1:]] == [0.0, 0.0]
    assert len({e.key for e in events}) == 1
    for event in events:
        bench.cache.unpin(event.key)
    assert bench.cache.stats().pinned_entries == 0


def test_the_pin_holds_even_when_the_cache_is_too_small_for_it() -> None:
    bench = Bench(max_entries=0)
    bench.submit(1, frame(1))
    bench.submit(2, frame(2))
    first, second = bench.next(), bench.next()
    assert first.key in bench.cache and second.key in bench.cache and bench.cache.over_budget
    bench.worker.close()


def test_frames_are_brought_to_the_input_size_by_the_policy() -> None:
    wide = np.zeros((4, 8, 3), dtype=np.uint8)
    wide[:, 2:6] = 200
    means = {}
    for policy in ("stretch", "center_crop", "pad"):
        bench = Bench(resize=policy, pad_value=50)
        bench.submit(1, wide)
        means[policy] = float(bench.next().embeddings[0, 0])
        bench.worker.close()
    assert means == {"stretch": 100.0, "center_crop": 200.0, "pad": 75.0}


def test_failures_become_events_and_the_thread_lives_on(bench: Bench) -> None:
    bench.submit(1, frame(13))
    bench.submit(2, np.zeros((4, 4), dtype=np.uint8))
    bench.submit(3, frame(14))
    assert bench.next() == FrameFailed("table", 1, "unlucky pixel")
    failed = bench.next()
    assert isinstance(failed, FrameFailed) and failed.frame_id == 2 and "shape" in failed.error
    assert isinstance(bench.next(), FrameEncoded)
    assert bench.cache.stats().entries == 1


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (np.zeros((3, 3), np.float32), "shape"),
        (np.full((2, 3), np.inf, np.float32), "inf or nan"),
        (None, "NoneType"),
    ],
)
def test_unusable_results_never_reach_the_cache(bench: Bench, result, words: str) -> None:
    bench.encoder.encode = lambda rgb: result
    bench.submit(1, frame(1))
    event = bench.next()
    assert isinstance(event, FrameFailed) and words in event.error
    assert len(bench.cache) == 0


def test_close_finishes_the_current_frame_and_fails_the_waiting_ones(bench: Bench) -> None:
    bench.hold()
    for number in (1, 2, 3):
        bench.submit(number, frame(number))
    assert bench.encoder.entered.wait(30)
    closer = threading.Thread(target=bench.worker.close)
    closer.start()
    accepted = [2, 3]
    for number in itertools.count(4):  # until close() has taken effect
        try:
            bench.submit(number, frame(number))
        except WorkerClosedError as error:
            assert f"frame {number}" in str(error)
            break
        accepted.append(number)
    bench.release()
    closer.join(30)
    assert not closer.is_alive()
    assert isinstance(bench.next(), FrameEncoded)
    failed = [bench.next() for _ in accepted]
    assert [(e.frame_id, "closed" in e.error) for e in failed] == [(n, True) for n in accepted]
    assert bench.events.empty()
    assert bench.encoder.closed == 1
    bench.worker.close()
    assert bench.encoder.closed == 1


def test_a_failing_receiver_does_not_stop_the_worker() -> None:
    seen: queue.Queue[int] = queue.Queue()

    def emit(event: VisionEvent) -> None:
        seen.put(event.frame_id)
        raise RuntimeError("receiver is broken")

    worker = VisionWorkers([FakeEncoder()], EmbeddingCache(4, 1000), emit, resize="stretch")
    worker.submit(EncodeRequest("table", 1, frame(1)))
    worker.submit(EncodeRequest("table", 2, frame(2)))
    assert [seen.get(timeout=30), seen.get(timeout=30)] == [1, 2]
    worker.close()


def test_close_may_be_called_from_the_receiver() -> None:
    closed = threading.Event()
    workers: list[VisionWorkers] = []

    def emit(event: VisionEvent) -> None:
        workers[0].close()
        closed.set()

    workers.append(VisionWorkers([FakeEncoder()], EmbeddingCache(4, 1000), emit, resize="stretch"))
    workers[0].submit(EncodeRequest("table", 1, frame(1)))
    assert closed.wait(30)
    workers[0].close()


def test_two_encoders_work_side_by_side_and_each_keeps_its_thread() -> None:
    encoders = [FakeEncoder(), FakeEncoder()]
    for encoder in encoders:
        encoder.gate.clear()
    events: queue.Queue[VisionEvent] = queue.Queue()
    workers = VisionWorkers(encoders, EmbeddingCache(8, 1000), events.put, resize="stretch")
    workers.submit(EncodeRequest("table", 0, frame(1)))
    workers.submit(EncodeRequest("table", 1, frame(2)))
    for encoder in encoders:
        assert encoder.entered.wait(30)  # both are in a frame at once
    encoders[0].gate.set()
    first = events.get(timeout=30)
    encoders[1].gate.set()
    second = events.get(timeout=30)
    assert {first.frame_id, second.frame_id} == {0, 1}
    for frame_id in range(2, 8):
        workers.submit(EncodeRequest("table", frame_id, frame(10 * frame_id)))
        events.get(timeout=30)
    workers.close()
    assert [len(encoder.threads) for encoder in encoders] == [1, 1]
    assert encoders[0].threads != encoders[1].threads
    assert [encoder.closed for encoder in encoders] == [1, 1]
