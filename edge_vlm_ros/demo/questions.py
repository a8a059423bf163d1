"""Questions about a scene, and their true answers.

A `Question` keeps what it is about, so the same text can be answered for another window of the
same stream: the truth for the frames that an answer really had in its context.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from edge_vlm_ros.demo import questions_now, questions_past
from edge_vlm_ros.demo.world import Scene

KINDS = {kind.name: kind for kind in (*questions_now.KINDS, *questions_past.KINDS)}
# The order decides what a seed draws; it is that of the training run.
KIND_NAMES = (
    "count", "count_first", "count_attr", "exist", "color", "what_at", "where", "relation",
    "yesno_rel", "go", "change", "which", "still", "was", "describe", "off",
)  # fmt: skip
_WEIGHTS = [KINDS[name].weight for name in KIND_NAMES]
_OPENINGS = ("Please tell me: ", "Hey, ", "Tell me, ", "Robot, ")


@dataclass(frozen=True)
class Question:
    """One wording of one question. `subject` is what it asks about, by kind."""

    kind: str
    text: str
    subject: tuple[object, ...]

    def answer(self, scene: Scene) -> str | None:
        """The true answer for a viewer of exactly this scene.

        None where the model was trained on no answer: the named object is ambiguous there, or a
        question about changes meets a single frame.
        """
        return KINDS[self.kind].answer(scene, *self.subject)


def ask_about(scene: Scene, rng: random.Random, kind: str | None = None) -> Question | None:
    """Draw a question that the scene can answer, in one of the trained wordings.

    kind: one of KIND_NAMES; None draws one, and then the result is never None. With a kind the
    result is None when the scene (or this draw) does not allow it. Raises ValueError for an
    unknown kind.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown question kind {kind!r}; known: {', '.join(KIND_NAMES)}")
    for _ in range(30):
        name = kind or rng.choices(KIND_NAMES, weights=_WEIGHTS)[0]
        asked = KINDS[name].ask(scene, rng)
        if asked is not None:
            text, subject = asked
            return Question(name, _vary(text, rng), subject)
        if kind is not None:
            return None
    text, subject = questions_now.ask_count(scene, rng)
    return Question("count", text, subject)


def qa(scene: Scene, rng: random.Random, kind: str | None = None) -> tuple[str, str, str] | None:
    """(kind, question, answer), drawn as for training. See `ask_about` for `kind` and None."""
    question = ask_about(scene, rng, kind)
    if question is None:
        return None
    answer = question.answer(scene)
    assert answer is not None, "a question is drawn only where it has an answer"
    return question.kind, question.text, answer


def _vary(text: str, rng: random.Random) -> str:
    """Now and then lower case, a missing question mark, an opening phrase."""
    if rng.random() < 0.15:
        text = text.lower()
    if rng.random() < 0.12:
        text = text.rstrip("?.")
    if rng.random() < 0.06:
        text = rng.choice(_OPENINGS) + text[0].lower() + text[1:]
    return text


@dataclass(frozen=True)
class Turn:
    """A question and its answer that were committed after frame `after_frame` (0 = the first)."""

    after_frame: int
    kind: str
    question: str
    answer: str


@dataclass(frozen=True)
class Item:
    """A reproducible test item: show the frames, commit the turns, ask the question."""

    scene: Scene
    commits: tuple[Turn, ...]
    question: Question
    answer: str


def make_item(seed: int, n_frames: int, n_commits: int = 0) -> Item:
    """The item of a seed; `heldout.json` names its items by these three numbers."""
    rng = random.Random(1_000_003 * seed + 17)
    scene = Scene.random(rng, n_frames)
    after = sorted(rng.sample(range(n_frames), min(n_commits, n_frames)))
    commits = []
    for frame in after:
        turn = qa(scene.window(0, frame + 1), rng)
        assert turn is not None
        commits.append(Turn(frame, *turn))
    question = ask_about(scene, rng)
    assert question is not None
    answer = question.answer(scene)
    assert answer is not None
    return Item(scene, tuple(commits), question, answer)
