"""An answer under concurrency has the token ids of the same question asked alone."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    answered,
    clip,
    engine_of,
    held,
    hold_prefill,
    settle,
    show,
)
from serial_reference import Committed, Seen, replay
from two_engines import POLICIES, TWO

from edge_vlm_ros.runtime import (
    Answer,
    AskOptions,
    NewestPublished,
    PlanningConfig,
    QuestionLimits,
    Runtime,
    SamplingParameters,
    Stamp,
)

STREAMS = ("table", "shelf")
N_INTERLEAVINGS = 20


@pytest.mark.parametrize("seed", range(N_INTERLEAVINGS))
def test_random_interleaving(start: Start, alone: Runtime, seed: int) -> None:
    commits = Committed()
    interleave(start(*STREAMS, listener=commits), alone, commits, random.Random(seed))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("policy", POLICIES)
def test_random_interleaving_on_two_engines(
    start: Start, alone: Runtime, policy: str, seed: int
) -> None:
    planning, commits = PlanningConfig(policy=policy, calibration="never"), Committed()
    runtime = start(*STREAMS, engines=TWO, planning=planning, listener=commits)
    interleave(runtime, alone, commits, random.Random(100 + seed))


def interleave(runtime: Runtime, alone: Runtime, commits: Committed, rng: random.Random) -> None:
    """Frames and questions about both streams in a random order, compared with the serial
    reference."""
    clips = {name: clip(rng.randrange(1, 7)) for name in STREAMS}
    answers: dict[str, list[tuple[Answer, AskOptions]]] = {name: [] for name in STREAMS}
    n_frames = {name: rng.randint(4, 8) for name in STREAMS}
    for name in STREAMS:
        runtime.add_frame(name, clips[name].frames(1)[0], 0)
    steps = [(name, kind) for name in STREAMS for kind in "f" * (n_frames[name] - 1) + "qqq"]
    rng.shuffle(steps)
    shown = dict.fromkeys(STREAMS, 1)
    for name, kind in steps:
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.03)
        if kind == "f":
            shown[name] += 1
            runtime.add_frame(name, clips[name].frames(shown[name])[-1], shown[name] - 1)
            continue
        options = _options(rng, shown[name])
        text = clips[name].question(0, shown[name], rng).text
        answers[name].append((runtime.ask(name, text, options), options))
    for name in STREAMS:
        seen = Seen(())
        for answer, options in answers[name]:
            result = answer.result(PATIENCE_S)
            assert result.error == "" and len(result.token_ids) > 0
            seen.results.append(result)
            seen.options[result.answer_id] = options
        settle(runtime)
        seen.items = runtime._loaded().streams[name].history.current.items
        seen.committed = [r for r in commits.results if r.stream == name]
        replay(alone, seen, lambda frame, c=clips[name]: c.frames(frame.frame_id + 1)[-1])
    for reading in runtime.engine_status():
        status = reading.status
        assert (status.running_answers, status.unordered_tokens) == (0, 0)


def _options(rng: random.Random, shown: int) -> AskOptions:
    sampling = SamplingParameters()
    if rng.random() < 0.25:
        sampling = SamplingParameters(temperature=1.0, top_k=20, seed=rng.randrange(1000))
    binding = AskOptions().binding
    if rng.random() < 0.2:
        binding = Stamp(rng.randrange(shown))
    return AskOptions(binding=binding, sampling=sampling, commit=rng.random() < 0.4)


def test_answers_while_the_history_is_rebuilt(start: Start, alone: Runtime) -> None:
    """Frames beyond what a history holds keep arriving: every answer is that of its own window."""
    runtime = start(*STREAMS, questions=QuestionLimits(max_pending=16))
    rng = random.Random(5)
    answers: list[tuple[str, Answer]] = []
    clips = {"table": clip(2), "shelf": clip(3)}
    for k in range(24):
        for name in STREAMS:
            runtime.add_frame(name, clips[name].frames(k + 1)[-1], k)
            if rng.random() < 0.2:
                text = clips[name].question(max(0, k - 5), k + 1, rng).text
                binding = NewestPublished() if k > 6 and rng.random() < 0.3 else None
                options = AskOptions(binding=binding) if binding else AskOptions()
                answers.append((name, runtime.ask(name, text, options)))
        time.sleep(rng.random() * 0.03)
        if runtime.question_status().pending > 12:
            answered(answers[-1][1])
    assert len(answers) >= 8
    for name, answer in answers:
        result = answer.result(PATIENCE_S)
        context = result.context
        first, last = context.first_stamp_ns, context.last_stamp_ns
        assert context.frames == last - first + 1  # no gap
        alone.reset("table")
        show(alone, "table", clips[name].frames(last + 1)[first:], first)
        again = alone.ask("table", result.question).result(PATIENCE_S)
        assert again.token_ids == result.token_ids
        assert again.context.identity == context.identity


def test_interleaved_steps_change_nothing(start: Start, alone: Runtime) -> None:
    """Four answers in one batch, with a frame computed between every two of their steps."""
    runtime = start(*STREAMS)
    frames = clip(4).frames(12)
    show(runtime, "table", frames[:4])
    settle(runtime)
    questions = ["Describe the scene.", "What changed?", "List the objects.", "How many things?"]
    steps = []

    def next_frame(tokens: object, positions: object, sequences: object, wanted: Any) -> bool:
        steps.append(len(wanted))
        k = len(steps)
        if all(wanted) and k < 40 and k % 5 == 0:
            stream = STREAMS[k % 2]
            runtime.add_frame(stream, frames[4 + k // 5 % 8], 100 + k)
        return False

    with (
        held(engine_of(runtime)._context, "decode_tokens", next_frame),
        hold_prefill(runtime) as gate,
    ):
        answers = [runtime.ask("table", question) for question in questions]
        gate.open()
        results = [answer.result(PATIENCE_S) for answer in answers]
    assert 4 in steps, "the answers were never decoded together"
    alone.reset("table")
    show(alone, "table", frames[:4])
    for result in results:
        assert alone.ask("table", result.question).result(PATIENCE_S).token_ids == result.token_ids
