"""Questions about the newest frame: how many, what, where, in which relation.

Each kind is a pair of functions. `ask_*` consumes random numbers in the order of the training run;
`answer_*` consumes none.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from edge_vlm_ros.demo.question_kind import Asked, Kind
from edge_vlm_ros.demo.wording import (
    NUMBERS,
    UNKNOWN_NOUNS,
    UNKNOWN_SHARE,
    Ref,
    count_phrase,
    draw_missing_ref,
    draw_noun,
    draw_ref,
    listing,
    place,
    plural,
    with_article,
)
from edge_vlm_ros.demo.world import COLOR_NAMES, TYPES, Cell, Scene, TableObject

OFF_TOPIC_ANSWER = "I am a small robot model and can only talk about the objects on the table."


def cell_of(obj: TableObject, frame: int = -1) -> Cell:
    cell = obj.cells[frame]
    assert cell is not None
    return cell


def ask_count(scene: Scene, rng: random.Random) -> Asked:
    wordings = (
        "How many objects are on the table?",
        "How many things are there?",
        "Count the objects.",
        "How many items do you see?",
        "How many objects are on the table now?",
        "What is the number of objects?",
    )
    return rng.choice(wordings), ()


def answer_count(scene: Scene) -> str:
    n = len(scene.present())
    if n == 0:
        return "The table is empty."
    return f"There {count_phrase(n, 'object', 'objects')} on the table."


def ask_count_attr(scene: Scene, rng: random.Random) -> Asked:
    present = scene.present()
    by_color = rng.random() < 0.5
    known = [o.color if by_color else o.type for o in present]
    every = COLOR_NAMES if by_color else TYPES
    value = rng.choice(known or every) if rng.random() < 0.75 else rng.choice(every)
    many = f"{value} objects" if by_color else plural(value)
    wordings = (f"How many {many} are there?", f"How many {many} do you see?", f"Count the {many}.")
    return rng.choice(wordings), ("color" if by_color else "type", value)


def answer_count_attr(scene: Scene, attribute: str, value: str) -> str:
    n = sum(getattr(o, attribute) == value for o in scene.present())
    one, many = (
        (f"{value} object", f"{value} objects") if attribute == "color" else (value, plural(value))
    )
    return f"There are no {many}." if n == 0 else f"There {count_phrase(n, one, many)}."


def ask_exist(scene: Scene, rng: random.Random) -> Asked:
    ref = _draw_exist_ref(scene.present(), rng)
    noun = with_article(str(ref))
    wordings = (
        f"Is there {noun} on the table?",
        f"Do you see {noun}?",
        f"Can you see {noun}?",
        f"Is there {noun}?",
    )
    return rng.choice(wordings), (ref,)


def _draw_exist_ref(present: list[TableObject], rng: random.Random) -> Ref:
    if present and rng.random() < 0.5:
        obj = rng.choice(present)
        return Ref(obj.color if rng.random() < 0.6 else None, obj.type)
    if rng.random() < UNKNOWN_SHARE:
        return Ref(None, rng.choice(UNKNOWN_NOUNS))
    if rng.random() < 0.7:
        color = rng.choice(COLOR_NAMES)
        ref = Ref(color, rng.choice(TYPES))
    else:
        ref = Ref(None, rng.choice(TYPES))
    if present and rng.random() < 0.4:  # colour of one, type of another: a close miss
        color = rng.choice(present).color
        ref = Ref(color, rng.choice(present).type)
    return ref


def answer_exist(scene: Scene, ref: Ref) -> str:
    hits = [o for o in scene.present() if ref.matches(o)]
    if not hits:
        return f"No, there is no {ref} on the table."
    if len(hits) > 1:
        return f"Yes, there are {NUMBERS[len(hits)]}."
    return f"Yes, there is {with_article(hits[0].name)} at the {place(cell_of(hits[0]))}."


def ask_color(scene: Scene, rng: random.Random) -> Asked | None:
    present = scene.present()
    single = [o for o in present if sum(p.type == o.type for p in present) == 1]
    if not single:
        return None
    obj = rng.choice(single)
    noun = draw_noun(rng, obj.type)
    wordings = (
        f"What color is the {noun}?",
        f"What colour is the {noun}?",
        f"Which color does the {noun} have?",
    )
    return rng.choice(wordings), (obj.type,)


def answer_color(scene: Scene, type_: str) -> str | None:
    hits = [o for o in scene.present() if o.type == type_]
    return f"The {type_} is {hits[0].color}." if len(hits) == 1 else None


def ask_what_at(scene: Scene, rng: random.Random) -> Asked:
    present = scene.present()
    if present and rng.random() < 0.8:
        cell = cell_of(rng.choice(present))
    else:
        cell = (rng.randrange(3), rng.randrange(3))
    where = place(cell)
    wordings = (
        f"What is at the {where}?",
        f"What object is at the {where} of the table?",
        f"What is in the {where}?",
    )
    return rng.choice(wordings), (cell,)


def answer_what_at(scene: Scene, cell: Cell) -> str:
    hits = [o for o in scene.present() if o.cells[-1] == cell]
    if not hits:
        return f"There is nothing at the {place(cell)}."
    return f"There is {with_article(hits[0].name)} at the {place(cell)}."


def ask_where(scene: Scene, rng: random.Random) -> Asked | None:
    present = scene.present()
    if present and rng.random() < 0.85:
        ref = draw_ref(rng, rng.choice(present), scene)
        wordings: tuple[str, ...] = (
            f"Where is the {ref}?",
            f"Where is the {ref} now?",
            f"Where can I find the {ref}?",
            f"Locate the {ref}.",
        )
        return rng.choice(wordings), (ref,)
    missing = draw_missing_ref(rng, scene)
    if missing is None:
        return None
    wordings = (
        f"Where is the {missing}?",
        f"Where is the {missing} now?",
        f"Locate the {missing}.",
    )
    return rng.choice(wordings), (missing,)


def answer_where(scene: Scene, ref: Ref) -> str | None:
    if ref.is_missing(scene):
        return f"I do not see {with_article(str(ref))}."
    obj = ref.resolve(scene)
    if obj is None or obj.cells[-1] is None:
        return None
    return f"The {obj.name} is at the {place(cell_of(obj))}."


# Per relation: does the second cell stand so to the first one?
_RELATIONS: dict[str, Callable[[Cell, Cell], bool]] = {
    "left of": lambda a, b: b[1] < a[1],
    "right of": lambda a, b: b[1] > a[1],
    "in front of": lambda a, b: b[0] < a[0],
    "behind": lambda a, b: b[0] > a[0],
}


def ask_relation(scene: Scene, rng: random.Random) -> Asked | None:
    present = scene.present()
    if not present:
        return None
    ref = draw_ref(rng, rng.choice(present), scene)
    relation = rng.choice(tuple(_RELATIONS))
    to_the = "to the " if relation in ("left of", "right of") else ""
    wordings = (
        f"What is {relation} the {ref}?",
        f"Which objects are {relation} the {ref}?",
        f"What do you see {relation} the {ref}?",
        f"What is {to_the}{relation} the {ref}?",
    )
    return rng.choice(wordings), (ref, relation)


def _nearest_first(relation: str, cell: Cell, other: Cell) -> tuple[int, int, int]:
    (row, column), (r, c) = cell, other
    if relation in ("left of", "right of"):
        return (-c if relation == "left of" else c, abs(r - row), r)
    return (-r if relation == "in front of" else r, abs(c - column), c)


def answer_relation(scene: Scene, ref: Ref, relation: str) -> str | None:
    obj = ref.resolve(scene)
    if obj is None or obj.cells[-1] is None:
        return None
    cell = cell_of(obj)
    hits = [o for o in scene.present() if _RELATIONS[relation](cell, cell_of(o))]
    if not hits:
        return f"Nothing is {relation} the {obj.name}."
    hits.sort(key=lambda o: _nearest_first(relation, cell, cell_of(o)))
    names = listing([with_article(o.name) for o in hits]).capitalize()
    return f"{names} {'is' if len(hits) == 1 else 'are'} {relation} the {obj.name}."


def ask_yesno_rel(scene: Scene, rng: random.Random) -> Asked | None:
    present = scene.present()
    if len(present) < 2:
        return None
    first, second = rng.sample(present, 2)
    relation = rng.choice(tuple(_RELATIONS))
    ref = draw_ref(rng, first, scene)
    other = draw_ref(rng, second, scene)
    return f"Is the {ref} {relation} the {other}?", (ref, relation, other)


def answer_yesno_rel(scene: Scene, ref: Ref, relation: str, other: Ref) -> str | None:
    first, second = ref.resolve(scene), other.resolve(scene)
    if first is None or second is None or first is second:
        return None
    if first.cells[-1] is None or second.cells[-1] is None:
        return None
    if _RELATIONS[relation](cell_of(second), cell_of(first)):
        return f"Yes, the {first.name} is {relation} the {second.name}."
    return f"No, the {first.name} is not {relation} the {second.name}."


def ask_describe(scene: Scene, rng: random.Random) -> Asked:
    wordings = (
        "Describe the scene.",
        "What do you see?",
        "What is on the table?",
        "List the objects.",
        "Describe what you see.",
    )
    return rng.choice(wordings), ()


def answer_describe(scene: Scene) -> str:
    present = sorted(scene.present(), key=cell_of)
    if not present:
        return "The table is empty."
    seen = [f"{with_article(o.name)} at the {place(cell_of(o))}" for o in present]
    return f"I see {listing(seen)}."


def ask_off(scene: Scene, rng: random.Random) -> Asked:
    wordings = (
        "What is the weather like?",
        "Who are you?",
        "Tell me a joke.",
        "What time is it?",
        "Can you sing?",
        "What is two plus two?",
        "Who is the president?",
        "Hello!",
        "How are you?",
        "Where am I?",
        "Open the door.",
    )
    return rng.choice(wordings), ()


def answer_off(scene: Scene) -> str:
    return OFF_TOPIC_ANSWER


KINDS = (
    Kind("count", 3, ask_count, answer_count),
    Kind("count_attr", 2, ask_count_attr, answer_count_attr),
    Kind("exist", 3, ask_exist, answer_exist),
    Kind("color", 2, ask_color, answer_color),
    Kind("what_at", 3, ask_what_at, answer_what_at),
    Kind("where", 4, ask_where, answer_where),
    Kind("relation", 4, ask_relation, answer_relation),
    Kind("yesno_rel", 2, ask_yesno_rel, answer_yesno_rel),
    Kind("describe", 3, ask_describe, answer_describe),
    Kind("off", 0.4, ask_off, answer_off),
)
