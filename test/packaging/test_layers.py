"""Dependencies point downwards only.

ros -> runtime -> planning, placement, engines, vision -> history
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "edge_vlm_ros"
ROS_FREE = (
    "energy",
    "history",
    "vision",
    "engines",
    "placement",
    "planning",
    "runtime",
    "simulation",
)
FORBIDDEN = {
    "energy": {
        *("history", "vision", "engines", "placement", "planning", "runtime", "simulation"),
        *("ros", "cli", "demo"),
    },
    "history": {"vision", "engines", "placement", "planning", "runtime", "ros", "cli", "demo"},
    "vision": {"engines", "placement", "planning", "runtime", "ros", "cli", "demo"},
    "engines": {"placement", "planning", "runtime", "ros", "cli", "demo"},
    "placement": {"planning", "runtime", "ros", "cli", "demo"},
    "planning": {"runtime", "ros", "cli", "demo", "simulation"},
    "runtime": {"ros", "cli", "demo", "simulation"},
    "simulation": {"ros", "cli", "demo"},
}


def imported_modules(path: Path) -> Iterator[str]:
    """Absolute names of all modules that a file imports, inside functions too."""
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", ROS_FREE)
def test_layer_imports_nothing_above_it(layer: str) -> None:
    for path in (PACKAGE / layer).rglob("*.py"):
        for module in imported_modules(path):
            parts = module.split(".")
            assert parts[0] not in ("rclpy", "sensor_msgs", "std_msgs"), f"{path}: {module}"
            if parts[0] == "edge_vlm_ros" and len(parts) > 1:
                assert parts[1] not in FORBIDDEN[layer], f"{path} imports {module}"
