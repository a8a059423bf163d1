from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import demo_profile

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.runtime import engine_maker
from edge_vlm_ros.runtime.engine_maker import EngineMaker

PLAIN = EngineConfig(name="plain", repack=False)
QUICK = EngineConfig(name="quick")
FAR = EngineConfig(name="far", device="rpc")


class Loaded:
    """Stands for LlamaModel; ``made`` has whether each was allowed a rearranged copy."""

    made: list[bool]

    def __init__(self, path: Path, *_: Any, repack: bool, **__: Any) -> None:
        self.made.append(repack)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    monkeypatch.setattr(Loaded, "made", [], raising=False)
    monkeypatch.setattr(engine_maker, "LlamaModel", Loaded)
    return Loaded.made


@pytest.mark.parametrize(
    ("engines", "rearranged"),
    [((QUICK,), True), ((PLAIN,), False), ((PLAIN, QUICK), True), ((FAR,), False)],
)
def test_the_vocabularys_model_is_rearranged_only_for_an_engine_that_computes_so(
    engines: tuple[EngineConfig, ...], rearranged: bool, made: list[bool]
) -> None:
    EngineMaker(demo_profile(), engines, lambda fraction: None).close()
    assert made == [rearranged]


def test_engines_share_a_model_unless_one_is_rearranged_and_the_other_not(
    made: list[bool],
) -> None:
    engines = (PLAIN, QUICK, EngineConfig(name="other"))
    maker = EngineMaker(demo_profile(), engines, lambda fraction: None)
    models = [maker._model(config) for config in engines]
    assert models[1] is models[2] is maker.vocabulary is not models[0]
    assert made == [True, False]
    maker.close()
