"""Settings, sampling parameters, jobs and readings: everything without a model."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edge_vlm_ros.engines import native_log
from edge_vlm_ros.engines.branch import cells_needed
from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.jobs import AppendJob, Trunk
from edge_vlm_ros.engines.moving_average import MovingAverage
from edge_vlm_ros.engines.native import FramePart
from edge_vlm_ros.engines.protocol import (
    AppendToTrunk,
    Boundary,
    EmbeddingSegment,
    StartAnswer,
    TokenSegment,
    TrunkId,
)
from edge_vlm_ros.engines.sampling import SamplingParameters

TRUNK = TrunkId("table", 0)
NAN = math.nan


# -------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, 100.1, NAN, math.inf]),
        ("top_k", [-1, 2**31]),
        ("top_p", [0.0, 1.1, NAN]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("repeat_penalty", [0.0, 0.09, 10.1, -1.0, NAN, math.inf]),
        ("seed", [-1, 2**32 - 1]),  # which llama.cpp replaces by a random one
    ],
)
def test_sampling_refuses_values_out_of_range(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=field):
            SamplingParameters(**{field: value})


def test_sampling_takes_the_ends_of_its_ranges() -> None:
    SamplingParameters(0.0, 0, 1.0, 0.0, 1.0, 0)
    SamplingParameters(5.0, 2**31 - 1, 0.001, 1.0, 0.1, 2**32 - 2)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("kv_type", ["q4_0", "", None]),
        ("ingest_share", [0.0, 1.0, -0.2, NAN]),
        ("max_parallel", [0, -1]),
        ("chunk_tokens", [0]),
        ("n_threads", [-1]),
        ("n_ctx", [-1]),
    ],
)
def test_config_refuses_values_out_of_range(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=field) as refusal:
            EngineConfig(name="npu", **{field: value})
        assert "npu" in str(refusal.value)


def test_threads() -> None:
    assert EngineConfig(n_threads=3).threads == 3
    assert EngineConfig().threads >= 1


# -------------------------------------------------------------------------------- jobs
def test_chunks_start_anew_at_every_segment() -> None:
    rows = np.arange(14, dtype=np.float64).reshape(7, 2)
    segments = (
        TokenSegment((1, 2, 3, 4, 5)),
        EmbeddingSegment(rows),  # type: ignore[arg-type]
        TokenSegment(()),
        TokenSegment((6,)),
    )
    job = AppendJob(AppendToTrunk(TRUNK, 1, segments), 3)
    chunks = []
    while not job.done:
        chunk = job.next_chunk()
        chunks.append(chunk)
        job.finish_chunk(0.5)
    assert [len(c) for c in chunks] == [3, 2, 3, 2, 2, 1]
    assert [c for c in chunks if isinstance(c, tuple)] == [(1, 2, 3), (4, 5), (6,)]
    parts = [c for c in chunks if isinstance(c, FramePart)]
    assert [part.first for part in parts] == [0, 3, 5]
    arrays = [part.embeddings for part in parts]
    assert all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays)
    np.testing.assert_array_equal(np.concatenate(arrays), rows)
    assert (job.tokens_done, job.seconds) == (13, 3.0)


def test_a_command_without_tokens_is_done_at_once() -> None:
    assert AppendJob(AppendToTrunk(TRUNK, 1, ()), 64).done
    assert AppendJob(AppendToTrunk(TRUNK, 1, (TokenSegment(()),)), 64).done


def test_cells_needed() -> None:
    start = Boundary(1, 7, bytes(32))
    command = StartAnswer(1, TRUNK, start, (1, 2, 3), 8, SamplingParameters(), ())
    assert cells_needed(command) == 3 + 8 - 1


def test_only_finished_commands_count_as_held() -> None:
    """Else a failure would take away what a branch stands on."""
    trunk = Trunk(TRUNK, 0, n_tokens=10)
    assert trunk.finished_tokens == 10
    trunk.jobs.append(AppendJob(AppendToTrunk(TRUNK, 2, (TokenSegment((1, 2, 3)),)), 2))
    trunk.jobs[0].finish_chunk(0.0)
    trunk.n_tokens += 2
    assert trunk.finished_tokens == 10


# -------------------------------------------------------------------------------- readings
def test_moving_average() -> None:
    average = MovingAverage()
    assert average.value == 0.0
    average.add(10.0)
    assert average.value == 10.0
    average.add(20.0)
    assert average.value == pytest.approx(11.0)
    for _ in range(200):
        average.add(3.0)
    assert average.value == pytest.approx(3.0, abs=1e-6)


def test_a_moving_average_that_starts_at_zero() -> None:
    average = MovingAverage()
    average.add(0.0)
    average.add(10.0)
    assert average.value == pytest.approx(1.0)


@pytest.fixture
def clean_log() -> Iterator[None]:
    native_log.recent_errors()
    yield
    native_log.recent_errors()


@pytest.mark.usefixtures("clean_log")
def test_native_warnings_and_errors_are_kept_once() -> None:
    native_log._receive(2, b"loading", None)
    native_log._receive(3, b"odd tensor\n", None)
    native_log._receive(4, b"cannot \xff read\n", None)
    assert native_log.recent_errors() == "odd tensor; cannot \ufffd read"
    assert native_log.recent_errors() == "llama.cpp gave no reason"


@pytest.mark.usefixtures("clean_log")
def test_native_lines_reach_logging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "edge_vlm_ros.llama_cpp")
    for level, text in [(2, b"info\n"), (3, b"warn 100%\n"), (4, b"bad\n"), (5, b"more\n")]:
        native_log._receive(level, text, None)
    native_log._receive(5, b"....", None)
    expected_warning = b"n_ctx (9) > n_ctx_train (8) -- possible training context overflow"
    native_log._receive(3, expected_warning, None)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "info"),
        ("WARNING", "warn 100%"),
        ("ERROR", "bad"),
        ("DEBUG", "more"),
        ("DEBUG", expected_warning.decode()),
    ]


@pytest.mark.usefixtures("clean_log")
def test_only_the_last_native_lines_are_kept() -> None:
    for n in range(100):
        native_log._receive(4, f"error {n}".encode(), None)
    assert native_log.recent_errors() == "error 96; error 97; error 98; error 99"


def test_a_temperature_too_small_for_floats_is_greedy() -> None:
    assert SamplingParameters(temperature=1e-38).is_greedy
    assert not SamplingParameters(temperature=0.01).is_greedy
