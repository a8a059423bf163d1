"""Random models, made when a test asks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_vlm import Made, make


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """name of an architecture -> its files and profile."""
    folder = tmp_path_factory.mktemp("random_vlm")
    known: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in known:
            known[name] = make(name, folder)
        return known[name]

    return get
