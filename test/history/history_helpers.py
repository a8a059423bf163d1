"""What the tests of histories share: small histories, and an independent view of computation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edge_vlm_ros.history import (
    FrameItem,
    FrameShape,
    History,
    HistoryLimits,
    Item,
    TextItem,
    TextRole,
    VersionState,
    root_identity,
)
from edge_vlm_ros.history.limits import FullPolicy

ROOT = root_identity(b"model", b"template")
OPEN_TOKENS = (90, 91)
# 1 + 4 + 2 = 7 tokens, 1 + 3 + 2 = 6 positions.
SHAPE = FrameShape(prefix=(1,), suffix=(2, 3), n_embeddings=4, n_embedding_positions=3)
FRAME_TOKENS = 7
FRAME_POSITIONS = 6
OPEN = TextItem(OPEN_TOKENS, TextRole.OPEN)


def make_history(
    *,
    max_tokens: int = 1000,
    max_frames: int = 12,
    keep_frames: int = 6,
    max_turns: int = 2,
    policy: FullPolicy = "drop_oldest",
    stream: str = "table",
    root: bytes = ROOT,
) -> History:
    limits = HistoryLimits(max_tokens, max_frames, keep_frames, max_turns, policy)
    return History(stream, root, OPEN_TOKENS, SHAPE, limits)


def frame(frame_id: int, stamp_ns: int = 0) -> FrameItem:
    return FrameItem(frame_id, stamp_ns, (1,), (2, 3), 4, 3)


def turn(*tokens: int, text: str = "") -> TextItem:
    return TextItem(tokens, TextRole.TURN, text)


def see(history: History, *stamps: int) -> None:
    """Register one frame for each stamp and complete it; its content follows from its id."""
    for stamp_ns in stamps:
        registered, _ = history.register_frame(stamp_ns)
        history.complete_frame(registered.frame_id, b"content %d" % registered.frame_id)


def publish_all(history: History) -> None:
    history.publish(history.newest(VersionState.ENCODED))


def outline(items: Iterable[Item]) -> list[str]:
    """``open``, ``f<frame id>`` and ``t<first token>`` for the items, in order."""
    return [_outline(item) for item in items]


def _outline(item: Item) -> str:
    if isinstance(item, FrameItem):
        return f"f{item.frame_id}"
    return "open" if item.role is TextRole.OPEN else f"t{item.tokens[0]}"


def computation(root: bytes, items: Iterable[Item], contents: Mapping[int, bytes | None]) -> object:
    """Everything that the KV of ``items`` depends on, in plain values; void frames add nothing."""
    steps: list[object] = [root]
    for item in items:
        if isinstance(item, TextItem):
            steps.append(("text", item.tokens))
        elif contents[item.frame_id] is not None:
            sizes = (item.n_embeddings, item.n_embedding_positions)
            steps.append(("frame", item.prefix, contents[item.frame_id], item.suffix, sizes))
    return tuple(steps)
