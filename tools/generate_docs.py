"""Writes into the README what stands in the code: the interface, the parameters, the example.

    python tools/generate_docs.py            print everything
    python tools/generate_docs.py --write    put it between the markers in README.md
    python tools/generate_docs.py --check    exit code 1 if README.md is not up to date

Each part stands between `<!-- begin:NAME -->` and `<!-- end:NAME -->`; NAME is example, interface
or parameters. Other files can be named after the option.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from edge_vlm_ros.ros.parameters import (  # noqa: E402
    ENGINE_PARAMETERS,
    NODE_PARAMETERS,
    STREAM_PARAMETERS,
    Change,
    ParameterSpec,
)
from edge_vlm_ros.ros.publishers import TOPICS  # noqa: E402
from edge_vlm_ros.ros.services import SERVICES  # noqa: E402

_MARKED = re.compile(r"(<!-- begin:(\w+) -->\n).*?(<!-- end:\2 -->)", re.DOTALL)
_WHEN = {Change.START: "at start", Change.UNCONFIGURED: "before configure", Change.LIVE: "any time"}


@dataclass(frozen=True)
class Field:
    """One field of an interface file. Constants have their value in ``default``."""

    kind: str
    name: str
    default: str
    comment: str


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(header)]
    lines.append(["---"] * len(lines[0]))
    lines.extend([cell.replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def fields(interface_part: str) -> list[Field]:
    """The fields of a message, or of one part of an action or service."""
    found = []
    for line in interface_part.splitlines():
        declaration, _, comment = line.partition("#")
        match = re.match(r"(\S+)\s+(\w+)(?:=|\s+)?(.*)", declaration.strip())
        if match:
            found.append(Field(match[1], match[2], match[3].strip(), comment.strip()))
    return found


def topics() -> str:
    return table(
        ("Topic", "Type", "What"),
        (
            (f"`{topic.name}`", f"`{_interface(topic.message)}`", topic.description)
            for topic in TOPICS
        ),
    )


def services() -> str:
    return table(
        ("Service", "Type", "What"),
        ((f"`{spec.name}`", f"`{_interface(spec.type)}`", spec.description) for spec in SERVICES),
    )


def action() -> str:
    text = (ROOT / "action" / "AskQuestion.action").read_text(encoding="utf-8")
    rows = []
    for part, content in zip(("goal", "result", "feedback"), text.split("---\n"), strict=True):
        found = fields(content)
        choices = [
            f"{field.default} {field.comment}" for field in found if field.name.startswith("BIND_")
        ]
        for field in found:
            if not field.name.isupper():
                what = "; ".join(choices) if field.name == "binding" else field.comment
                rows.append((part, f"`{field.name}`", f"`{field.kind}`", field.default, what))
    return table(("`~/ask`", "Field", "Type", "Default", "What"), rows)


def parameters(specs: Iterable[ParameterSpec], prefix: str = "") -> str:
    return table(
        ("Parameter", "Default", "What", "Values", "Change"),
        (
            (
                f"`{prefix}{spec.name}`",
                f"`{_literal(spec.default)}`",
                spec.description,
                _values(spec),
                _WHEN[spec.change],
            )
            for spec in specs
        ),
    )


def interface() -> str:
    return "\n".join(
        (
            "Action `~/ask` (`edge_vlm_ros/action/AskQuestion`):\n",
            action(),
            "Topics published:\n",
            topics(),
            "Services:\n",
            services(),
        )
    )


def all_parameters() -> str:
    return "\n".join(
        (
            parameters(NODE_PARAMETERS),
            "Of each stream `NAME` in `streams`:\n",
            parameters(STREAM_PARAMETERS, "NAME."),
            "Of each engine `NAME` in `engines`:\n",
            parameters(ENGINE_PARAMETERS, "engine.NAME."),
        )
    )


def example() -> str:
    code = (ROOT / "docs" / "examples" / "ask_without_ros.py").read_text(encoding="utf-8")
    return f"```python\n{code}```\n"


PARTS = {"example": example, "interface": interface, "parameters": all_parameters}


def filled(text: str) -> str:
    """``text`` with the parts between their markers. Raises KeyError for an unknown marker."""
    return _MARKED.sub(lambda match: match[1] + PARTS[match[2]]() + match[3], text)


def _interface(kind: type) -> str:
    package, group = kind.__module__.split(".")[:2]
    return f"{package}/{group}/{kind.__name__}"


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return '""' if value == "" else str(value)


def _values(spec: ParameterSpec) -> str:
    if spec.choices:
        return ", ".join(spec.choices)
    if spec.range is None:
        return ""
    low, high = spec.range
    return f"{low:g} to {high:g}" if isinstance(spec.default, float) else f"{low} to {high}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--write", action="store_true", help="put the parts into the files")
    mode.add_argument("--check", action="store_true", help="fail if a file is not up to date")
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "README.md"])
    given = parser.parse_args(arguments)
    if not (given.write or given.check):
        for name, part in PARTS.items():
            print(f"## {name}\n\n{part()}")
        return 0
    stale = False
    for path in given.files:
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if given.write:
            path.write_text(after, encoding="utf-8")
        elif after != before:
            stale = True
            print(f"{path} is not up to date: run python tools/generate_docs.py --write")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
