"""Which questions are accepted: everything that can be refused is refused at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from edge_vlm_ros.history import Version, VersionBinding

from .answer import AskOptions, QuestionRejected
from .config import QuestionLimits
from .path import Path
from .prompt import PromptTemplate
from .status import QuestionStatus
from .stream import StreamState
from .trunks import Trunks

MAX_STOP_STRINGS = 16
"""Every token of an answer is compared with all of them."""


class Admission:
    """Checks a question before it is bound; every refusal says what to do. Keeps count."""

    def __init__(
        self,
        limits: QuestionLimits,
        streams: Collection[str],
        engines: Collection[str],
        prompt: PromptTemplate,
        tokenize: Callable[[str], tuple[int, ...]],
    ) -> None:
        self.limits = limits
        self.accepted = 0
        self.rejections: Counter[str] = Counter()
        """By reason."""
        self._streams = streams
        self._engines = engines
        self._prompt = prompt
        self._tokenize = tokenize

    def admit(self, stream: str, text: str, options: AskOptions, pending: int) -> tuple[int, ...]:
        """The tokens of an acceptable question. ``pending`` questions are being answered.

        Raises QuestionRejected.
        """
        self._check_stream(stream)
        self._check_options(options)
        if not text.strip():
            raise QuestionRejected("empty_question", "the question is empty")
        if pending >= self.limits.max_pending:
            raise QuestionRejected(
                "queue_full",
                f"{pending} questions are being answered, which is the limit (max_pending): "
                "ask again later",
            )
        # A character has at least one byte and a token at most some dozens: do not tokenize a book.
        if len(text) > _MAX_CHARACTERS_PER_TOKEN * self.limits.max_question_tokens:
            raise self._too_long(f"{len(text)} characters")
        prompt = self._prompt.question(self._tokenize(text))
        if len(prompt) > self.limits.max_question_tokens:
            raise self._too_long(f"{len(prompt)} tokens")
        return prompt

    def status(self, pending: int, finished: dict[str, int]) -> QuestionStatus:
        return QuestionStatus(
            pending=pending,
            max_pending=self.limits.max_pending,
            accepted=self.accepted,
            rejected=dict(self.rejections),
            finished=finished,
        )

    def _check_stream(self, stream: str) -> None:
        if stream not in self._streams:
            known = ", ".join(sorted(self._streams))
            raise QuestionRejected("unknown_stream", f"no stream {stream!r}; there are: {known}")

    def _check_options(self, options: AskOptions) -> None:
        most = self.limits.max_answer_tokens
        if options.max_tokens < 0 or not 0 <= options.deadline_s < float("inf"):
            raise QuestionRejected("bad_options", "max_tokens and deadline_s must be 0 or more")
        if len(options.stop) > MAX_STOP_STRINGS or max(map(len, options.stop), default=0) > 256:
            raise QuestionRejected(
                "bad_options",
                f"at most {MAX_STOP_STRINGS} stop strings of 256 characters are taken",
            )
        if options.max_tokens > most:
            raise QuestionRejected(
                "answer_too_long",
                f"{options.max_tokens} tokens are asked for, an answer has at most {most} "
                "(max_answer_tokens)",
            )
        if isinstance(options.binding, VersionBinding) and options.binding.n < 1:
            raise QuestionRejected(
                "bad_binding",
                f"version {options.binding.n} holds nothing that could be asked about: versions "
                "start with 1",
            )

        self._check_placement(options)

    def _check_placement(self, options: AskOptions) -> None:
        for name in (options.engine, options.prefill_engine):
            if name and name not in self._engines:
                known = ", ".join(self._engines)
                raise QuestionRejected("unknown_engine", f"no engine {name!r}; there are: {known}")
        if options.prefill_engine and not options.engine:
            raise QuestionRejected(
                "bad_options",
                f"prefill_engine is {options.prefill_engine!r}, but engine, which is to decode the "
                "answer, is not given: name both",
            )
        paths = [path.value for path in Path]
        if options.path not in paths:
            raise QuestionRejected(
                "bad_options",
                f"path is {options.path!r}; it must be empty or one of: {', '.join(paths[1:])}",
            )

    def _too_long(self, size: str) -> QuestionRejected:
        return QuestionRejected(
            "question_too_long",
            f"the question has {size}, at most {self.limits.max_question_tokens} tokens are taken "
            "with its template (max_question_tokens)",
        )


def check_version(
    stream: StreamState, version: Version, options: AskOptions, trunks: Trunks
) -> None:
    """Whether a version of ``stream`` can be asked about with these options.

    Raises QuestionRejected.
    """
    if stream.is_empty(version):
        raise QuestionRejected(
            "no_frames",
            f"stream {stream.name!r} holds no frame to answer from: is its camera running, and do "
            "its images arrive?",
        )
    engine = options.prefill_engine or options.engine
    elsewhere = engine not in ("", stream.ingest_engine)
    if Path(options.path) is Path.LOCAL and elsewhere:
        if trunks.table.holder(engine, stream.name, version.epoch, version.n) is None:
            raise QuestionRejected(
                "path_impossible",
                f"engine {engine!r} does not hold what stream {stream.name!r} shows, and does not "
                "ingest it: leave the path open, or use import or replay",
            )


_MAX_CHARACTERS_PER_TOKEN = 64
