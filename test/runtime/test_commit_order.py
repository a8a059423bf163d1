"""In which order finished answers come out."""

from __future__ import annotations

from edge_vlm_ros.runtime.commits import CommitOrderQueue


def test_completion_order_holds_nobody_back() -> None:
    queue: CommitOrderQueue[str] = CommitOrderQueue("completion")
    for answer_id in (1, 2):
        queue.expect("table", answer_id)
    assert queue.finish("table", 2, "b") == ["b"]
    assert queue.finish("table", 1, "a") == ["a"]
    assert len(queue) == 0


def test_arrival_order_waits_for_those_before_in_the_same_stream() -> None:
    queue: CommitOrderQueue[str] = CommitOrderQueue("arrival")
    for answer_id in (1, 2, 3):
        queue.expect("table", answer_id)
    queue.expect("shelf", 4)
    assert queue.finish("table", 2, "b") == []
    assert queue.finish("table", 3, "c") == []
    assert queue.finish("shelf", 4, "d") == ["d"]
    assert len(queue) == 2
    assert queue.finish("table", 1, "a") == ["a", "b", "c"]
    assert len(queue) == 0
    queue.expect("table", 5)
    assert queue.finish("table", 5, "e") == ["e"]
