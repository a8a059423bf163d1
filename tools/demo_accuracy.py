"""Exact-match accuracy of the demo model on held-out items, drawn as a camera gives them.

    python -m tools.demo_accuracy [--items 100] [--size 224x224 | 640x480] [--threads 1]

Prints each wrong answer and the share of right ones; no runtime is involved (see reference_loop).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from edge_vlm_ros.demo.questions import Item, make_item
from edge_vlm_ros.demo.render import SceneRenderer
from edge_vlm_ros.demo.texture import TRAINED_SIZE
from tools.reference_loop import ReferenceLoop, load_heldout

MODEL = Path(__file__).resolve().parents[1] / "models" / "demo"


def centre_square(rgb: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """The centred square of a picture, resized to size x size."""
    height, width = rgb.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = rgb[top : top + side, left : left + side]
    if side == size:
        return square
    resized = cv2.resize(square, (size, size), interpolation=cv2.INTER_AREA)
    return np.asarray(resized, np.uint8)


@dataclass(frozen=True)
class Outcome:
    item: Item
    tokens: list[int]
    text: str

    @property
    def right(self) -> bool:
        return self.text == self.item.answer


def show_item(loop: ReferenceLoop, item: Item, frames: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Reset the loop and give it the item's frames and committed turns."""
    loop.reset()
    for index, frame in enumerate(frames):
        loop.add_frame(frame)
        for turn in item.commits:
            if turn.after_frame == index:
                loop.commit(turn.question, turn.answer)


def outcomes(
    loop: ReferenceLoop, n_items: int, width: int = TRAINED_SIZE, height: int = TRAINED_SIZE
) -> Iterator[Outcome]:
    """Ask the first n_items held-out questions about pictures of the given size."""
    for entry in load_heldout(MODEL / "heldout.json")[:n_items]:
        item = make_item(entry["seed"], entry["n_frames"], entry["n_commit"])
        renderer = SceneRenderer(item.scene, entry["seed"], width=width, height=height)
        frames = [
            centre_square(renderer.frame(k), TRAINED_SIZE) for k in range(item.scene.n_frames)
        ]
        show_item(loop, item, frames)
        yield Outcome(item, *loop.ask(item.question.text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--size", default="224x224", help="width x height of the camera's pictures")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    width, height = (int(x) for x in args.size.split("x"))
    loop = ReferenceLoop(MODEL / "lm.Q8_0.gguf", MODEL / "vision.onnx", n_threads=args.threads)
    right = asked = 0
    for outcome in outcomes(loop, args.items, width, height):
        asked += 1
        right += outcome.right
        if not outcome.right:
            item = outcome.item
            print(f"{item.scene.n_frames} frames, {item.question.kind}: {item.question.text}")
            print(f"    answer: {outcome.text}\n    truth:  {item.answer}")
    print(f"{width}x{height}: {right} of {asked} right")


if __name__ == "__main__":
    main()
