"""Questions are answered rightly, from the version they are bound to, as they stream."""

from __future__ import annotations

import random

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    answered,
    changes,
    clip,
    engine_of,
    held,
    hold_encoder,
    settle,
    show,
)

from edge_vlm_ros.demo.questions import make_item
from edge_vlm_ros.demo.render import SceneRenderer
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AnswerState,
    AnswerUpdate,
    AskOptions,
    FinishReason,
    NewestPublished,
    QuestionLimits,
    QuestionRejected,
    Runtime,
    RuntimeListener,
    SamplingParameters,
    Stamp,
    VersionBinding,
)
from tools.demo_accuracy import MODEL
from tools.reference_loop import ReferenceLoop, load_heldout


def test_heldout_items_like_the_reference_loop(runtime: Runtime, reference: ReferenceLoop) -> None:
    items = load_heldout(MODEL / "heldout.json")
    n_right = 0
    for entry in [e for e in items if not e["commits"]][:10]:
        item = make_item(entry["seed"], entry["n_frames"])
        assert item.question.text == entry["question"]
        renderer = SceneRenderer(item.scene, entry["seed"])
        frames = [renderer.frame(k) for k in range(item.scene.n_frames)]
        runtime.reset("table")
        reference.reset()
        show(runtime, "table", frames)
        for frame in frames:
            reference.add_frame(frame)
        result = runtime.ask("table", item.question.text).result(PATIENCE_S)
        ids, text = reference.ask(item.question.text)
        assert (list(result.token_ids), result.text) == (ids, text)
        assert result.context.frames == len(frames)
        n_right += text == item.answer
    assert n_right >= 9


def test_updates_make_up_the_answer(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(3))
    answer = runtime.ask("table", "Describe the scene.")
    updates = list(answer)
    result = answer.result()
    states = list(dict.fromkeys(update.state for update in updates))
    assert states == [
        AnswerState.WAITING_CONTEXT,
        AnswerState.QUEUED,
        AnswerState.PREFILL,
        AnswerState.DECODING,
    ]
    texts = [update for update in updates if update.delta]
    assert [update.sequence for update in texts] == list(range(len(texts)))
    assert "".join(update.delta for update in texts) == result.text
    assert result.finish_reason is FinishReason.STOP
    assert updates[-1].generated_tokens == len(result.token_ids) == result.metrics.generated_tokens
    assert answer.next_update() is None and answer.result() is result
    assert list(answer) == []


def test_waiting_for_an_update_can_time_out(runtime: Runtime) -> None:
    with hold_encoder(runtime) as gate:
        show(runtime, "table", clip(1).frames(1))
        answer = runtime.ask("table", "Describe the scene.")
        update = answer.next_update(PATIENCE_S)
        assert update is not None and update.state is AnswerState.WAITING_CONTEXT
        with pytest.raises(TimeoutError, match="no update in 0.01 s"):
            answer.next_update(0.01)
        with pytest.raises(TimeoutError):
            answer.result(0.01)
        gate.open()
        assert answer.result(PATIENCE_S).text


def test_metrics_add_up(start: Start) -> None:
    runtime = start()
    show(runtime, "table", clip(1).frames(4))
    results = [runtime.ask("table", "Describe the scene.").result(PATIENCE_S) for _ in range(2)]
    for result in results:
        m = result.metrics
        assert m.engine == "cpu"
        assert m.total_ms >= m.ttft_ms > 0
        parts = m.context_wait_ms + m.queue_ms + m.prefill_ms
        assert m.ttft_ms == pytest.approx(parts, abs=0.01)
        assert m.total_ms == pytest.approx(m.ttft_ms + m.decode_ms, abs=0.01)
        assert m.decode_tok_s == pytest.approx(1000 * (m.generated_tokens - 1) / m.decode_ms)
        assert m.history_frames == 4
        assert m.history_tokens == result.context.tokens == 3 + 4 * 52
        assert m.prompt_tokens == 4 + 5 and m.running_answers == 1
    assert results[0].metrics.embedding_cache_misses == 4
    assert results[1].metrics.context_wait_ms < results[0].metrics.context_wait_ms


def test_binding_kinds(runtime: Runtime) -> None:
    change = changes(1)[0]
    frames = change.clip.frames(change.stop + 1)
    show(runtime, "table", frames[:-1], first=100)
    settle(runtime)
    old = runtime.stream_status("table").registered
    with hold_encoder(runtime) as gate:
        show(runtime, "table", frames[-1:], first=500)

        def ask(options: AskOptions) -> Answer:
            return runtime.ask("table", change.text, options)

        newest = ask(AskOptions())
        published = ask(AskOptions(binding=NewestPublished())).result(PATIENCE_S)
        by_stamp = ask(AskOptions(binding=Stamp(499))).result(PATIENCE_S)
        by_version = ask(AskOptions(binding=VersionBinding(old.epoch, old.n))).result(PATIENCE_S)
        first = ask(AskOptions(binding=VersionBinding(old.epoch, 2))).result(PATIENCE_S)
        future = ask(AskOptions(binding=Stamp(10**18)))
        gate.open()
    for result in (published, by_stamp, by_version):
        assert result.text == change.before
        assert result.context.version == old
        assert result.context.frames == change.stop
        assert result.context.last_stamp_ns == 100 + change.stop - 1
    assert first.context.frames == 1
    assert answered(newest) == answered(future) == change.after
    assert newest.result().context.last_stamp_ns == 500
    assert ask(AskOptions(binding=Stamp(499))).result(PATIENCE_S).text == change.before


@pytest.mark.parametrize(
    ("binding", "text"),
    [
        (VersionBinding(0, 99), "version 99"),
        (VersionBinding(0, 0), "version 0"),
        (VersionBinding(0, -1), "version -1"),
        (VersionBinding(5, 1), "epoch 5"),
        (Stamp(4), "oldest has 10 ns"),
    ],
)
def test_bindings_to_nothing_are_rejected(runtime: Runtime, binding: object, text: str) -> None:
    show(runtime, "table", clip(1).frames(2), first=10)
    settle(runtime)
    with pytest.raises(QuestionRejected, match=text) as rejection:
        runtime.ask("table", "What changed?", AskOptions(binding=binding))  # type: ignore[arg-type]
    assert rejection.value.reason == "bad_binding"
    assert runtime.question_status().rejected == {"bad_binding": 1}


def test_right_after_a_reset_there_is_nothing_to_bind_to(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(2))
    settle(runtime)
    with held(engine_of(runtime)._context, "decode_tokens"):  # not even the opening text
        assert runtime.reset("table") == runtime.stream_status("table").registered
        for binding, text in (
            (VersionBinding(0, 2), "not available"),
            (Stamp(1), "no frames"),
            (NewestPublished(), "no version"),
        ):
            with pytest.raises(QuestionRejected, match=text):
                runtime.ask("table", "What changed?", AskOptions(binding=binding))


@pytest.mark.parametrize(
    ("stream", "question", "options", "reason"),
    [
        ("shelf", "What changed?", AskOptions(), "unknown_stream"),
        ("table", " \n", AskOptions(), "empty_question"),
        ("table", "cup " * 40, AskOptions(), "question_too_long"),
        ("table", "x" * 100_000, AskOptions(), "question_too_long"),
        ("table", "Hm?", AskOptions(max_tokens=65), "answer_too_long"),
        ("table", "Hm?", AskOptions(max_tokens=-1), "bad_options"),
        ("table", "Hm?", AskOptions(deadline_s=-1), "bad_options"),
        ("table", "Hm?", AskOptions(deadline_s=float("nan")), "bad_options"),
        ("table", "Hm?", AskOptions(deadline_s=float("inf")), "bad_options"),
    ],
)
def test_rejections(
    start: Start, stream: str, question: str, options: AskOptions, reason: str
) -> None:
    heard = []

    class Listener(RuntimeListener):
        def question_rejected(self, stream: str, question: str, reason: str, text: str) -> None:
            heard.append((stream, question, reason, text))

    limits = QuestionLimits(max_question_tokens=32, max_answer_tokens=64, default_max_tokens=64)
    runtime = start(listener=Listener(), questions=limits)
    with pytest.raises(QuestionRejected) as rejection:
        runtime.ask(stream, question, options)
    assert rejection.value.reason == reason
    assert heard == [(stream, question, reason, str(rejection.value))]
    status = runtime.question_status()
    assert (status.accepted, status.pending, status.rejected) == (0, 0, {reason: 1})


def test_stop_strings_and_lengths(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(2))
    whole = answered(runtime.ask("table", "Describe the scene."))
    stop = whole.split()[2]
    result = runtime.ask("table", "Describe the scene.", AskOptions(stop=(stop,))).result()
    assert (result.finish_reason, result.text) == (
        FinishReason.STOP_STRING,
        whole[: whole.index(stop)],
    )
    result = runtime.ask("table", "Describe the scene.", AskOptions(max_tokens=3)).result()
    assert result.finish_reason is FinishReason.LENGTH and len(result.token_ids) == 3
    assert whole.startswith(result.text)


def test_sampling_follows_its_seed(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(2))

    def sample(seed: int) -> tuple[int, ...]:
        options = AskOptions(sampling=SamplingParameters(temperature=3.0, seed=seed))
        return runtime.ask("table", "Describe the scene.", options).result(PATIENCE_S).token_ids

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_exceptions_of_the_listener_change_nothing(start: Start) -> None:
    calls = []

    class Failing(RuntimeListener):
        def answer_updated(self, answer: Answer, update: AnswerUpdate) -> None:
            calls.append("updated")
            raise RuntimeError("listener")

        def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
            calls.append("finished")
            raise RuntimeError("listener")

        def version_published(self, version: object) -> None:
            calls.append("published")
            raise RuntimeError("listener")

    runtime = start(listener=Failing())
    change = changes(1)[0]
    show(runtime, "table", change.clip.frames(change.stop))
    assert answered(runtime.ask("table", change.text)) == change.before
    assert {"updated", "finished", "published"} <= set(calls)


def test_a_listener_that_calls_the_runtime_is_told_so(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    class Calling(RuntimeListener):
        def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
            runtime.reset("table")

    runtime = start(listener=Calling())
    show(runtime, "table", clip(1).frames(1))
    assert answered(runtime.ask("table", "Describe the scene."))
    assert "a listener may not call the runtime" in caplog.text
    assert runtime.stream_status("table").frames == 1


def test_a_deadline_in_the_far_future_is_no_deadline(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(1))
    options = AskOptions(deadline_s=1e15)
    assert runtime.ask("table", "Describe the scene.", options).result(PATIENCE_S).text
    assert runtime.question_status().finished == {"stop": 1}


def test_two_streams_know_nothing_of_each_other(start: Start, reference: ReferenceLoop) -> None:
    runtime = start("table", "shelf")
    rng = random.Random(3)
    for name, seed in (("table", 1), ("shelf", 2)):
        show(runtime, name, clip(seed).frames(4))
    for name, seed in (("table", 1), ("shelf", 2)):
        reference.reset()
        for frame in clip(seed).frames(4):
            reference.add_frame(frame)
        for _ in range(3):
            text = clip(seed).question(0, 4, rng).text
            result = runtime.ask(name, text).result(PATIENCE_S)
            assert list(result.token_ids) == reference.ask(text)[0]


def test_a_question_about_nothing_is_rejected(start: Start) -> None:
    runtime = start()
    with pytest.raises(QuestionRejected, match="no frame") as rejected:
        runtime.ask("table", "What do you see?")
    assert rejected.value.reason == "no_frames"
    show(runtime, "table", clip(1).frames(1))
    assert answered(runtime.ask("table", "What do you see?"))
    runtime.reset("table")
    with pytest.raises(QuestionRejected, match="no frame"):
        runtime.ask("table", "What do you see?")


@pytest.mark.parametrize("stop", [("x",) * 17, ("x" * 257,)])
def test_stop_strings_are_bounded(start: Start, stop: tuple[str, ...]) -> None:
    runtime = start()
    show(runtime, "table", clip(1).frames(1))
    with pytest.raises(QuestionRejected, match="stop strings") as rejected:
        runtime.ask("table", "What do you see?", AskOptions(stop=stop))
    assert rejected.value.reason == "bad_options"
