"""Pieces of the `ask` verb that need no node."""

from __future__ import annotations

import io
import queue
from types import SimpleNamespace

import pytest
from action_msgs.msg import GoalStatus
from edge_vlm_ros.action import AskQuestion

from edge_vlm_ros.cli import ask
from edge_vlm_ros.cli.arguments import goal_from, parser
from edge_vlm_ros.cli.ask import AnswerPrinter, exit_code, summary
from edge_vlm_ros.engines.sampling import SamplingParameters


def goal(*arguments: str) -> AskQuestion.Goal:
    return goal_from(parser().parse_args(["Where?", *arguments]))


def test_a_plain_question_is_a_plain_goal() -> None:
    assert goal() == AskQuestion.Goal(question="Where?")


def test_every_option_reaches_the_goal() -> None:
    made = goal(
        *"--stream table --max-tokens 9 --deadline 1.5 --stop a --stop b --commit".split(),
        *"--temperature 0.5 --top-k 3 --top-p 0.25 --min-p 0.125".split(),
        *"--repeat-penalty 1.5 --seed 8".split(),
        *"--engine second --prefill-engine cpu --path import".split(),
    )
    assert (made.stream, made.max_tokens, made.deadline_s, made.commit) == ("table", 9, 1.5, True)
    assert list(made.stop) == ["a", "b"]
    assert (made.engine, made.prefill_engine, made.path) == ("second", "cpu", "import")
    sampling = made.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.25)
    assert (sampling.min_p, sampling.repeat_penalty, sampling.seed) == (0.125, 1.5, 8)


def test_bindings() -> None:
    assert goal("--binding", "published").binding == AskQuestion.Goal.BIND_PUBLISHED
    stamped = goal("--binding", "stamp:1800000000.123456789")
    assert stamped.binding == AskQuestion.Goal.BIND_STAMP
    assert (stamped.stamp.sec, stamped.stamp.nanosec) == (1800000000, 123456789)
    version = goal("--binding", "version:2.15")
    assert version.binding == AskQuestion.Goal.BIND_VERSION
    assert (version.version.epoch, version.version.n) == (2, 15)


@pytest.mark.parametrize(
    "binding",
    ["newest", "stamp:noon", "version:3", "stamp:1e30", "version:", "version:0.4294967296"],
)
def test_wrong_bindings_are_explained(binding: str) -> None:
    with pytest.raises(ValueError, match="--binding"):
        goal("--binding", binding)


@pytest.mark.parametrize(
    "arguments",
    [["--deadline", "-1"], ["--max-tokens", "many"], ["--path", "teleport"], ["--nothing"]],
)
def test_wrong_arguments_end_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        goal(*arguments)
    assert caught.value.code == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--seed", "4294967295", "a whole number from 0 to 4294967294"),
        ("--top-k", "2147483648", "a whole number from 0 to 2147483647"),
        ("--max-tokens", "4294967296", "a whole number from 0 to 4294967295"),
        ("--timeout", "1e9", "a number of seconds above 0 and below 1000000000"),
        ("--deadline", "soon", "a number of seconds above 0 and below 1000000000"),
    ],
)
def test_a_number_out_of_its_range_is_told_the_range(
    option: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        goal(option, value)
    assert f"argument {option}: must be {allowed}, not {value}" in capsys.readouterr().err


def test_the_engine_takes_the_greatest_numbers_that_are_allowed() -> None:
    sampling = goal("--seed", "4294967294", "--top-k", "2147483647").sampling
    assert SamplingParameters(seed=sampling.seed, top_k=sampling.top_k)


def test_the_help_documents_all_exit_codes() -> None:
    text = parser().format_help()
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "130"):
        assert f"\n  {code}" in text


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (GoalStatus.STATUS_SUCCEEDED, "stop", 0),
        (GoalStatus.STATUS_SUCCEEDED, "length", 0),
        (GoalStatus.STATUS_SUCCEEDED, "deadline", 5),
        (GoalStatus.STATUS_ABORTED, "error", 1),
        (GoalStatus.STATUS_ABORTED, "cancelled", 1),
        (GoalStatus.STATUS_CANCELED, "cancelled", 1),
    ],
)
def test_exit_codes(status: int, reason: str, code: int) -> None:
    assert exit_code(status, reason) == code


# ------------------------------------------------------------------------- printing
def test_deltas_are_printed_as_they_come_and_completed_at_the_end() -> None:
    out = io.StringIO()
    printer = AnswerPrinter(out)
    printer.delta(0, "The cup")
    assert out.getvalue() == "The cup"
    printer.delta(1, "")
    printer.delta(1, " is")
    printer.finish("The cup is left.")
    assert out.getvalue() == "The cup is left.\n"


def test_a_lost_delta_leaves_no_hole() -> None:
    out = io.StringIO()
    printer = AnswerPrinter(out)
    printer.delta(0, "The")
    printer.delta(2, " is")
    printer.delta(3, " left")
    printer.finish("The cup is left.")
    assert out.getvalue() == "The cup is left.\n"


@pytest.mark.parametrize(
    ("engine", "prefill_engine", "where"),
    [
        ("cpu", "cpu", "import on cpu"),
        ("second", "cpu", "import on cpu -> second"),
        ("", "", "on no engine"),
    ],
)
def test_the_summary_names_speed_path_engines_and_context(
    engine: str, prefill_engine: str, where: str
) -> None:
    result = AskQuestion.Result(finish_reason="stop", answer_id=4)
    result.metrics.ttft_ms = 12.4
    result.metrics.decode_tok_s = 99.96
    result.metrics.generated_tokens = 7
    result.metrics.engine = engine
    result.metrics.prefill_engine = prefill_engine
    result.metrics.path = "import"
    result.context.frames = 3
    result.context.version.stream = "table"
    result.context.version.epoch = 1
    result.context.version.n = 5
    assert summary(result) == (
        f"[TTFT 12 ms, 100.0 tok/s, 7 tokens, stop; {where}; saw 3 frames, table@1.5; answer 4]"
    )


def test_text_that_is_not_unicode_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ask.main(["Where?", "--stop", "\udcff"])
    assert ended.value.code == ask.USAGE
    assert "surrogates not allowed" in capsys.readouterr().err


class _DyingNode:
    """What `ask` sees of a node that goes away in the middle of an answer."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[ask._Event] = queue.SimpleQueue()
        self.client = self

    def wait_for_server(self, timeout_sec: float) -> bool:
        return True

    def server_is_ready(self) -> bool:
        return False

    def hears_rejections(self, timeout: float) -> None:
        return

    def send(self, goal: AskQuestion.Goal) -> None:
        feedback = AskQuestion.Feedback(delta="The red")
        self.events.put(ask._Event("accepted", SimpleNamespace(accepted=True)))
        self.events.put(ask._Event("feedback", feedback))


def test_a_node_that_goes_away_does_not_leave_ask_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask, "_POLL_S", 0.01)
    assert ask._ask(_DyingNode(), goal(), "/edge_vlm/", 1.0) == ask.NO_SERVER
    printed = capsys.readouterr()
    assert printed.out == "The red\n"
    assert "/edge_vlm/ask has gone" in printed.err
