"""Questions about what happened between the first and the newest frame of a scene.

They need at least two frames. `ask_*` consumes random numbers in the order of the training run;
`answer_*` consumes none.
"""

from __future__ import annotations

import random

from edge_vlm_ros.demo.question_kind import Asked, Kind
from edge_vlm_ros.demo.questions_now import cell_of
from edge_vlm_ros.demo.wording import (
    Ref,
    count_phrase,
    draw_missing_ref,
    draw_ref,
    listing,
    place,
    with_article,
)
from edge_vlm_ros.demo.world import Event, Scene


def ask_count_first(scene: Scene, rng: random.Random) -> Asked | None:
    if scene.n_frames < 2:
        return None
    wordings = (
        "How many objects were there at first?",
        "How many objects were on the table at the start?",
        "How many things were there in the beginning?",
    )
    return rng.choice(wordings), ()


def answer_count_first(scene: Scene) -> str | None:
    if scene.n_frames < 2:
        return None
    n = len(scene.present(0))
    if n == 0:
        return "At first the table was empty."
    verb, number = count_phrase(n, "object", "objects").split(" ", 1)
    return f"At first there {'was' if verb == 'is' else 'were'} {number}."


def ask_go(scene: Scene, rng: random.Random) -> Asked | None:
    if scene.n_frames < 2 or not scene.objects:
        return None
    if rng.random() < 0.12:
        missing = draw_missing_ref(rng, scene)
        if missing is None:
            return None
        wordings: tuple[str, ...] = (
            f"Where did the {missing} go?",
            f"What happened to the {missing}?",
        )
        return rng.choice(wordings), (missing,)
    changed = list(dict.fromkeys(event.obj for event in scene.events))
    if changed and rng.random() < 0.7:
        obj = scene.objects[rng.choice(changed)]
    else:
        obj = scene.objects[rng.randrange(len(scene.objects))]
    ref = draw_ref(rng, obj, scene)
    wordings = (
        f"Where did the {ref} go?",
        f"What happened to the {ref}?",
        f"Did the {ref} move?",
        f"Where has the {ref} gone?",
    )
    return rng.choice(wordings), (ref,)


def answer_go(scene: Scene, ref: Ref) -> str | None:
    if scene.n_frames < 2 or not scene.objects:
        return None
    if ref.is_missing(scene):
        return f"I do not see {with_article(str(ref))}."
    obj = ref.resolve(scene)
    if obj is None:
        return None
    events = [e for e in scene.events if scene.objects[e.obj] is obj]
    if not events:
        return f"The {obj.name} did not move. It is still at the {place(cell_of(obj))}."
    event = events[-1]  # the only one, in a scene of at most MAX_FRAMES frames
    if event.kind == "move":
        return f"The {obj.name} moved from the {place(event.source)} to the {place(event.target)}."
    if event.kind == "remove":
        return f"The {obj.name} was taken away. It was at the {place(event.source)}."
    return f"The {obj.name} was put on the table. It is at the {place(event.target)}."


def describe_event(scene: Scene, event: Event) -> str:
    """'the red cup moved from the center to the front left', without a capital or full stop."""
    name = scene.objects[event.obj].name
    if event.kind == "move":
        return f"the {name} moved from the {place(event.source)} to the {place(event.target)}"
    if event.kind == "remove":
        return f"the {name} was taken away from the {place(event.source)}"
    return f"{with_article(name)} was put at the {place(event.target)}"


def ask_change(scene: Scene, rng: random.Random) -> Asked | None:
    if scene.n_frames < 2:
        return None
    wordings = (
        "What changed?",
        "What happened?",
        "What is different now?",
        "Did anything change?",
        "What has changed on the table?",
    )
    return rng.choice(wordings), ()


def answer_change(scene: Scene) -> str | None:
    if scene.n_frames < 2:
        return None
    if not scene.events:
        return "Nothing changed."
    told = [describe_event(scene, event) for event in scene.events]
    return ". ".join(text[0].upper() + text[1:] for text in told) + "."


_WHICH_WORDINGS = {
    "move": ("What moved?", "Which object moved?", "Did anything move?"),
    "remove": ("What was taken away?", "What was removed?", "What is missing?",
               "Which object is gone?"),
    "add": ("What was added?", "What is new?", "Which object was put on the table?"),
}  # fmt: skip
_WHICH_VERBS = {
    "move": ("moved", "moved"),
    "remove": ("was taken away", "were taken away"),
    "add": ("was put on the table", "were put on the table"),
}


def ask_which(scene: Scene, rng: random.Random) -> Asked | None:
    if scene.n_frames < 2:
        return None
    kind = rng.choice(tuple(_WHICH_WORDINGS))
    return rng.choice(_WHICH_WORDINGS[kind]), (kind,)


def answer_which(scene: Scene, kind: str) -> str | None:
    if scene.n_frames < 2:
        return None
    singular, plural = _WHICH_VERBS[kind]
    names = [scene.objects[e.obj].name for e in scene.events if e.kind == kind]
    if not names:
        return f"Nothing {singular}."
    return f"The {listing(names)} {singular if len(names) == 1 else plural}."


def ask_still(scene: Scene, rng: random.Random) -> Asked | None:
    first = scene.present(0)
    if scene.n_frames < 2 or not first:
        return None
    gone = [o for o in first if o.cells[-1] is None]
    obj = rng.choice(gone) if gone and rng.random() < 0.5 else rng.choice(first)
    wording = rng.choice(
        ("Is the {} still there?", "Is the {} still on the table?", "Can you still see the {}?")
    )
    ref = draw_ref(rng, obj, scene)
    return wording.format(ref), (ref,)


def answer_still(scene: Scene, ref: Ref) -> str | None:
    obj = ref.resolve(scene)
    if scene.n_frames < 2 or obj is None or obj.cells[0] is None:
        return None
    if obj.cells[-1] is None:
        return f"No, the {obj.name} was taken away."
    return f"Yes, the {obj.name} is at the {place(cell_of(obj))}."


def ask_was(scene: Scene, rng: random.Random) -> Asked | None:
    first = scene.present(0)
    if scene.n_frames < 2 or not first:
        return None
    obj = rng.choice(first)
    wording = rng.choice(
        (
            "Where was the {} at first?",
            "Where was the {} before?",
            "Where was the {} in the beginning?",
        )
    )
    ref = draw_ref(rng, obj, scene)
    return wording.format(ref), (ref,)


def answer_was(scene: Scene, ref: Ref) -> str | None:
    obj = ref.resolve(scene)
    if scene.n_frames < 2 or obj is None or obj.cells[0] is None:
        return None
    return f"At first the {obj.name} was at the {place(cell_of(obj, 0))}."


KINDS = (
    Kind("count_first", 1, ask_count_first, answer_count_first),
    Kind("go", 6, ask_go, answer_go),
    Kind("change", 3, ask_change, answer_change),
    Kind("which", 3, ask_which, answer_which),
    Kind("still", 2, ask_still, answer_still),
    Kind("was", 2, ask_was, answer_was),
)
