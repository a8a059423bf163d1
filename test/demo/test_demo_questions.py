"""Questions, their answers, and the held-out items that seeds stand for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vlm_ros.demo.questions import KIND_NAMES, KINDS, Question, ask_about, make_item, qa
from edge_vlm_ros.demo.wording import Ref
from edge_vlm_ros.demo.world import Event, Scene, TableObject

HELDOUT = Path(__file__).resolve().parents[2] / "models" / "demo" / "heldout.json"


def test_all_heldout_items_regenerate() -> None:
    entries = json.loads(HELDOUT.read_text())["items"]
    assert len(entries) == 300
    for entry in entries:
        item = make_item(entry["seed"], entry["n_frames"], entry["n_commit"])
        assert item.scene.n_frames == entry["n_frames"]
        assert [vars(turn) for turn in item.commits] == entry["commits"]
        asked = (item.question.kind, item.question.text, item.answer)
        assert asked == (entry["kind"], entry["question"], entry["answer"])


def move_scene() -> Scene:
    """A red cup moves, a blue box is taken away, a blue ball appears, a green box stays."""
    cup = TableObject("cup", "red", [(0, 0), (2, 2), (2, 2), (2, 2)])
    box = TableObject("box", "blue", [(1, 1), (1, 1), None, None])
    ball = TableObject("ball", "blue", [None, None, None, (0, 1)])
    green = TableObject("box", "green", [(1, 0)] * 4)
    events = [
        Event("move", 0, 1, (0, 0), (2, 2)),
        Event("remove", 1, 2, (1, 1), None),
        Event("add", 2, 3, None, (0, 1)),
    ]
    return Scene(4, [cup, box, ball, green], events)


@pytest.mark.parametrize(
    ("kind", "subject", "answer"),
    [
        ("count", (), "There are three objects on the table."),
        ("count_first", (), "At first there were three objects."),
        ("count_attr", ("color", "blue"), "There is one blue object."),
        ("count_attr", ("type", "box"), "There is one box."),
        ("count_attr", ("type", "ring"), "There are no rings."),
        ("exist", (Ref(None, "box"),), "Yes, there is a green box at the middle left."),
        ("exist", (Ref("blue", "box"),), "No, there is no blue box on the table."),
        ("color", ("box",), "The box is green."),
        ("color", ("ring",), None),
        ("what_at", ((2, 2),), "There is a red cup at the back right."),
        ("what_at", ((1, 1),), "There is nothing at the center."),
        ("where", (Ref(None, "mug"),), "The red cup is at the back right."),
        ("where", (Ref(None, "box"),), None),  # two boxes were seen
        ("where", (Ref("blue", "box"),), None),  # taken away: "where is it" was not trained
        ("where", (Ref(None, "dog"),), "I do not see a dog."),
        ("relation", (Ref("red", "one"), "left of"),
         "A blue ball and a green box are left of the red cup."),
        ("relation", (Ref("red", "one"), "behind"), "Nothing is behind the red cup."),
        ("yesno_rel", (Ref(None, "cup"), "behind", Ref("green", "box")),
         "Yes, the red cup is behind the green box."),
        ("yesno_rel", (Ref(None, "cup"), "left of", Ref("green", "box")),
         "No, the red cup is not left of the green box."),
        ("go", (Ref("red", "cup"),), "The red cup moved from the front left to the back right."),
        ("go", (Ref("blue", "cube"),), "The blue box was taken away. It was at the center."),
        ("go", (Ref(None, "sphere"),),
         "The blue ball was put on the table. It is at the front center."),
        ("go", (Ref("green", "object"),),
         "The green box did not move. It is still at the middle left."),
        ("go", (Ref("red", "ring"),), "I do not see a red ring."),
        ("go", (Ref("blue", "one"),), None),  # two blue objects
        ("change", (), "The red cup moved from the front left to the back right. The blue box was "
         "taken away from the center. A blue ball was put at the front center."),
        ("which", ("move",), "The red cup moved."),
        ("which", ("remove",), "The blue box was taken away."),
        ("still", (Ref("blue", "box"),), "No, the blue box was taken away."),
        ("still", (Ref(None, "cup"),), "Yes, the red cup is at the back right."),
        ("still", (Ref(None, "ball"),), None),  # was not there at first
        ("was", (Ref(None, "cup"),), "At first the red cup was at the front left."),
        ("was", (Ref(None, "ball"),), None),
        ("describe", (), "I see a blue ball at the front center, a green box at the middle left "
         "and a red cup at the back right."),
        ("off", (), "I am a small robot model and can only talk about the objects on the table."),
    ],
)  # fmt: skip
def test_answers(kind: str, subject: tuple[object, ...], answer: str | None) -> None:
    assert Question(kind, "(text)", subject).answer(move_scene()) == answer


def test_the_same_question_about_another_window() -> None:
    scene = move_scene()
    question = Question("go", "Where did the cup go?", (Ref(None, "cup"),))
    assert question.answer(scene.window(1, 4)) == (
        "The red cup did not move. It is still at the back right."
    )
    assert question.answer(scene.window(3, 4)) is None  # one frame has no past
    where = Question("where", "Where is the blue box?", (Ref("blue", "box"),))
    assert where.answer(scene.window(0, 2)) == "The blue box is at the center."
    assert where.answer(scene.window(2, 4)) == "I do not see a blue box."


@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KIND_NAMES))
def test_asked_questions_have_answers(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    scene = Scene.random(rng, 40)
    window = scene.window(20, 20 + rng.randint(1, 12))
    question = ask_about(window, rng, kind)
    if question is not None:
        assert question.kind == kind
        assert question.answer(window)
        assert question.text == question.text.strip() and "\n" not in question.text


@given(seed=st.integers(0, 10_000))
def test_qa_asks_and_answers(seed: int) -> None:
    scene = Scene.random(random.Random(seed))
    asked = ask_about(scene, random.Random(seed + 1))
    assert asked is not None
    expected = (asked.kind, asked.text, asked.answer(scene))
    assert qa(scene, random.Random(seed + 1)) == expected


def test_every_kind_can_be_asked() -> None:
    scene = move_scene()
    for kind in KIND_NAMES:
        assert any(ask_about(scene, random.Random(s), kind) for s in range(20)), kind
    assert set(KIND_NAMES) == set(KINDS)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown question kind 'whence'"):
        ask_about(move_scene(), random.Random(0), "whence")
