"""Reads what trace.py writes, also when the end of the file is missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_vlm_ros.engines.step_record import Activity, StepRecord

from .trace import QUESTION, STEP, QuestionTimes


@dataclass(frozen=True)
class Trace:
    """Steps of each engine and encoder, oldest first, and the questions that had ended."""

    timelines: dict[str, list[StepRecord]]
    questions: list[QuestionTimes]


def read_trace(path: str | Path) -> Trace:
    """The steps and questions of a trace file. Times are in seconds.

    Raises OSError, or ValueError for a file that is no trace of ours.
    """
    events = _events(Path(path).read_text(encoding="utf-8"), str(path))
    names: dict[int, str] = {}
    timelines: dict[str, list[StepRecord]] = {}
    marks: dict[int, list[dict[str, Any]]] = {}
    try:
        for event in events:
            if event["name"] == "thread_name":
                names[event["tid"]] = event["args"]["name"]
            elif event.get("cat") == STEP:
                timelines.setdefault(names[event["tid"]], []).append(_step(event))
            elif event.get("cat") == QUESTION:
                marks.setdefault(event["id"], []).append(event)
        questions = [_question(answer_id, spans) for answer_id, spans in marks.items()]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a trace of edge_vlm_ros: {error!r}") from error
    return Trace(timelines, [question for question in questions if question is not None])


def _events(text: str, path: str) -> list[dict[str, Any]]:
    whole_lines = text[: text.rfind("\n")]
    for repaired in (text, text.rstrip(",") + "]", whole_lines.rstrip(",") + "]"):
        try:
            events = json.loads(repaired)
        except json.JSONDecodeError:
            continue
        if isinstance(events, list):
            return events
    raise ValueError(f"{path} is not a trace of edge_vlm_ros: it holds no list of events")


def _step(event: dict[str, Any]) -> StepRecord:
    args = event["args"]
    return StepRecord(
        Activity(event["name"]),
        event["ts"] / 1e6,
        event["dur"] / 1e6,
        args["tokens"],
        args["sequences"],
        args["history_tokens"],
        args.get("bytes", 0),
        args.get("for", ""),
    )


def _question(answer_id: int, spans: list[dict[str, Any]]) -> QuestionTimes | None:
    """None for one of which the file has only the beginning."""
    begun = {event["name"]: event["ts"] / 1e6 for event in spans if event["ph"] == "b"}
    whole = f"answer {answer_id}"
    ends = [e["ts"] / 1e6 for e in spans if e["ph"] == "e" and e["name"] == whole]
    if not ends:
        return None
    return QuestionTimes(
        answer_id=answer_id,
        arrived=begun[whole],
        context_ready=begun.get("prefill"),
        first_token=begun.get("decode"),
        finished=ends[0],
        **spans[0]["args"],
    )
