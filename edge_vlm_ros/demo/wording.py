"""Words of the demo's English: names of places and objects, and how questions refer to objects."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from edge_vlm_ros.demo.world import COLOR_NAMES, TYPES, Cell, Scene, TableObject

SYNONYMS: dict[str, tuple[str, ...]] = {
    "ball": ("ball", "sphere"),
    "box": ("box", "cube", "block"),
    "cup": ("cup", "mug"),
}
_TYPE_OF_NOUN = {noun: type_ for type_, nouns in SYNONYMS.items() for noun in nouns}
ANY_NOUNS = ("object", "one")  # "the red object", "the red one"

# Asked for, never on the table.
UNKNOWN_NOUNS = tuple(
    """
    dog cat chair phone pen key spoon fork knife lamp shoe hat car bus tree flower bird fish horse
    robot person hand door window laptop mouse keyboard screen camera clock watch glass plant towel
    soap brush comb bag wallet coin card pencil marker eraser ruler scissors hammer screw nail drill
    saw rope tape glue paint stone shell feather egg bread cake cookie pizza carrot potato tomato
    lemon pear grape melon cherry milk tea coffee salt sugar pepper pan pot kettle tray jar lid
    sponge candle match doll kite drum guitar piano violin flute radio tv remote cable battery bulb
    switch fan heater sofa bed pillow blanket carpet curtain mirror picture vase basket bucket broom
    mop toy puzzle dice token sticker stamp letter envelope newspaper magazine map flag tent helmet
    glove sock shirt jacket belt tie scarf umbrella bicycle wheel engine
    """.split()
)
UNKNOWN_SHARE = 0.3  # of the questions about missing objects ask for an unknown noun

_ROWS = ("front", "middle", "back")
_COLUMNS = ("left", "center", "right")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def place(cell: Cell | None) -> str:
    """'front left' .. 'back right'; the middle cell is 'center'. Raises ValueError for None."""
    if cell is None:
        raise ValueError("an object that is off the table has no place")
    row, column = cell
    return "center" if cell == (1, 1) else f"{_ROWS[row]} {_COLUMNS[column]}"


def with_article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def listing(parts: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def plural(type_: str) -> str:
    return type_ + ("es" if type_ == "box" else "s")


def count_phrase(n: int, one: str, many: str) -> str:
    """'is one box', 'are two boxes'."""
    return f"is {NUMBERS[n]} {one}" if n == 1 else f"are {NUMBERS[n]} {many}"


@dataclass(frozen=True)
class Ref:
    """How a question names an object: 'red cup', 'mug', 'blue one'."""

    color: str | None
    noun: str

    def __str__(self) -> str:
        return self.noun if self.color is None else f"{self.color} {self.noun}"

    def matches(self, obj: TableObject) -> bool:
        if self.color is not None and obj.color != self.color:
            return False
        return self.noun in ANY_NOUNS or obj.type == _TYPE_OF_NOUN.get(self.noun, self.noun)

    def resolve(self, scene: Scene) -> TableObject | None:
        """The one object of the scene (in any of its frames) that is meant, None if not one."""
        hits = [o for o in scene.objects if self.matches(o)]
        return hits[0] if len(hits) == 1 else None

    def is_missing(self, scene: Scene) -> bool:
        """Whether the scene never shows it and the name is one that missing objects are given."""
        plain = self.noun in TYPES or self.noun in UNKNOWN_NOUNS
        return plain and not any(self.matches(o) for o in scene.objects)


def draw_noun(rng: random.Random, type_: str) -> str:
    return rng.choice(SYNONYMS.get(type_, (type_,)))


def draw_ref(rng: random.Random, obj: TableObject, scene: Scene) -> Ref:
    """A name that only `obj` has among the objects of the scene."""
    pool = scene.objects
    noun = draw_noun(rng, obj.type) if rng.random() < 0.3 else obj.type
    options = [Ref(obj.color, noun)] * 2
    if sum(o.type == obj.type for o in pool) == 1:
        options += [Ref(None, noun)] * 3
    if sum(o.color == obj.color for o in pool) == 1:
        options += [Ref(obj.color, any_noun) for any_noun in ANY_NOUNS]
    return rng.choice(options)


def draw_missing_ref(rng: random.Random, scene: Scene) -> Ref | None:
    """A name that no object of the scene has; None when the drawn name turned out to exist."""
    if rng.random() < UNKNOWN_SHARE:
        color = rng.choice(COLOR_NAMES) if rng.random() < 0.3 else None
        ref = Ref(color, rng.choice(UNKNOWN_NOUNS))
    else:
        color = rng.choice(COLOR_NAMES) if rng.random() < 0.6 else None
        ref = Ref(color, rng.choice(TYPES))
    return ref if ref.is_missing(scene) else None
