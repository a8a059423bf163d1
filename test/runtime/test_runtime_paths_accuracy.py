"""Held-out items are answered the same, whatever way the history and the question took."""

from __future__ import annotations

import pytest
from helpers import MODEL

from tools.path_accuracy import PATHS, PathOutcome, run, table
from tools.reference_loop import load_heldout

N_ITEMS = 100
N_SINGLE_FRAMES = 10
"""At most so many items are one frame and nothing else, which cannot be moved in part."""


@pytest.fixture(scope="module")
def outcomes() -> list[PathOutcome]:
    """Raises WrongPathError when an answer did not come the way it was forced to."""
    found = run(load_heldout(MODEL / "heldout.json")[:N_ITEMS])
    print(table(found))
    return found


@pytest.mark.parametrize("path", PATHS)
def test_every_path_answers_as_the_local_one(outcomes: list[PathOutcome], path: str) -> None:
    """With Q8_0 weights and a q8_0 KV cache to the token."""
    of_path = [o for o in outcomes if o.path == path]
    assert N_ITEMS - N_SINGLE_FRAMES <= len(of_path) <= N_ITEMS
    assert all(o.same_tokens for o in of_path)
    wrong = sum(not o.right for o in of_path)
    assert wrong <= sum(not o.right for o in outcomes if o.path == "local") + 1
    assert wrong <= 0.03 * N_ITEMS
