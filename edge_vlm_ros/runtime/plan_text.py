"""A plan in words, for logs and traces."""

from __future__ import annotations

from edge_vlm_ros.planning.plan import Alternative

from .status import PlanRecord


def plan_text(record: PlanRecord) -> str:
    """What was chosen and why, then every alternative on a line of its own, the best first.

    Times are from the question's arrival.
    """
    plan = record.plan
    lines = [
        f"answer {record.answer_id} of stream {record.stream}, {plan.policy} for the earliest "
        f"{record.objective.replace('_', ' ')}: {_way(plan.chosen)} ({plan.reason})"
    ]
    possible = [alternative for alternative in plan.alternatives if not alternative.blocked]
    for alternative in sorted(possible, key=lambda a: a.score(record.objective)):
        chosen = "->" if alternative == plan.chosen else "  "
        lines.append(f"{chosen} {_way(alternative)}: {_times(alternative, record.decided_s)}")
    for alternative in plan.alternatives:
        if alternative.blocked:
            lines.append(f"   {_way(alternative)}: not possible, {alternative.blocked}")
    return "\n".join(lines)


def _way(alternative: Alternative) -> str:
    engines = alternative.prefill_engine
    if alternative.is_handoff:
        engines += f" then {alternative.decode_engine}"
    return f"{alternative.path} on {engines}"


def _times(alternative: Alternative, decided_s: float) -> str:
    text = (
        f"context {decided_s + alternative.context_s:.3f} s, "
        f"first token {decided_s + alternative.first_token_s:.3f} s, "
        f"end {decided_s + alternative.finished_s:.3f} s"
    )
    for what, seconds in (
        ("delays other answers by", alternative.others_s),
        ("delays frames by", alternative.ingest_s),
        ("delays the end of all by", alternative.last_s),
        ("beyond its share:", alternative.share_s),
    ):
        if seconds:
            text += f", {what} {seconds:.3f} s"
    return text
