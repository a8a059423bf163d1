"""Writes models/demo/heldout.json: test items that are named by their seeds.

python -m tools.demo_model.heldout --out FILE     write the 300 items
python -m tools.demo_model.heldout --check FILE   compare a file, pictures included, to the code
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from edge_vlm_ros.demo.questions import make_item
from edge_vlm_ros.demo.sprites import sprite_bank
from edge_vlm_ros.demo.world import MAX_FRAMES
from tools.demo_model.renderer_torch import item_frames

N_ITEMS = 300
FIRST_SEED = 700_000
FORMAT = (
    "edge_vlm_ros.demo.questions.make_item(seed, n_frames, n_commit) regenerates an item: scene, "
    "commits, question and answer. after_frame counts from 0. frame_crc32 belongs to the frames of "
    "tools/demo_model/renderer_torch.py (uint8 RGB 224x224, raw bytes; torch 2.13.0 CPU; another "
    "build may round a pixel differently)."
)


def describe_item(index: int, bank: torch.Tensor) -> dict[str, Any]:
    seed = FIRST_SEED + index
    n_frames = 1 + index % MAX_FRAMES
    n_commit = random.Random(seed).choice([0, 0, 0, 1, 1, 2])
    item = make_item(seed, n_frames, n_commit)
    frames = item_frames(item.scene, seed, bank)
    return {
        "id": index,
        "seed": seed,
        "n_frames": n_frames,
        "n_commit": n_commit,
        "commits": [asdict(turn) for turn in item.commits],
        "kind": item.question.kind,
        "question": item.question.text,
        "answer": item.answer,
        "frame_crc32": [zlib.crc32(frame.tobytes()) for frame in frames],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path)
    action.add_argument("--check", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bank = torch.tensor(sprite_bank())
    items = [describe_item(i, bank) for i in range(N_ITEMS)]
    if args.out:
        lines = ",\n".join(json.dumps(item) for item in items)
        args.out.write_text(f'{{\n"format": {json.dumps(FORMAT)},\n"items": [\n{lines}\n]\n}}\n')
        return
    stored = json.loads(args.check.read_text())["items"]
    different = [item["id"] for item, old in zip(items, stored, strict=True) if item != old]
    print(f"{len(items) - len(different)} of {len(items)} items are equal")
    if different:
        sys.exit(f"different items: {different}")


if __name__ == "__main__":
    main()
