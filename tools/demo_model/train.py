"""Trains the demo model on synthetic table-top streams; pictures are drawn on the training device.

    python -m tools.demo_model.train --out RUN --minutes 17.5 --workers 14 --compile   # one H200
    python -m tools.demo_model.train --out RUN --preset xs --minutes 1                 # try it: CPU

Writes RUN/config.json, tokenizer.json, checkpoint/, log.txt, and state.pt for --resume.
Then: python -m tools.demo_model.export --run RUN --out DIR.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tools.demo_model.batches import Batch, BatchSource
from tools.demo_model.checkpoint import save_config, save_weights
from tools.demo_model.presets import PRESETS, Preset
from tools.demo_model.tokenizer import train_tokenizer
from tools.demo_model.trainer import Trainer

_SAVE_EVERY = 100.0  # seconds
_EVALUATION_SEED = 77_000_000


class Log:
    """Prints lines and keeps them in the run's log.txt."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def __call__(self, text: str) -> None:
        print(text, flush=True)
        self._file.write(text + "\n")
        self._file.flush()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", required=True, type=Path, help="the run's folder")
    parser.add_argument("--preset", default="s", choices=PRESETS)
    parser.add_argument("--minutes", type=float, default=17.5, help="of training, in all")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to use; else one is made")
    parser.add_argument("--lr", type=float, default=1.5e-3, help="of AdamW")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=0, help="processes that draw batches")
    parser.add_argument("--compile", action="store_true", help="torch.compile the parts")
    parser.add_argument("--eval-batches", type=int, default=40, help="fresh batches at the end")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def prepare_tokenizer(args: argparse.Namespace) -> str:
    """The text of RUN/tokenizer.json, made or copied when it is not there."""
    path: Path = args.out / "tokenizer.json"
    if args.tokenizer:
        path.write_text(args.tokenizer.read_text())
    elif not (args.resume and path.exists()):
        train_tokenizer().save(str(path))
    return path.read_text()


def batches(args: argparse.Namespace, tokenizer: str, preset: Preset, seed: int) -> Iterator[Batch]:
    vision = preset.vision
    source = BatchSource(tokenizer, vision.tokens, preset.rows, preset.world, vision.grid, seed)
    loader = torch.utils.data.DataLoader(
        source,
        batch_size=None,
        num_workers=args.workers,
        prefetch_factor=6 if args.workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)


def save(run: Path, trainer: Trainer, seconds: float) -> None:
    new = run / "state.new"
    torch.save({"trainer": trainer.state_dict(), "seconds": seconds}, new)
    os.replace(new, run / "state.pt")
    save_weights(run, trainer.encoder, trainer.language)


def train(
    args: argparse.Namespace, trainer: Trainer, source: Iterator[Batch], seconds: float, log: Log
) -> None:
    """Train until args.minutes are over; `seconds` of them have been used before."""
    total = args.minutes * 60
    every = 100 if torch.cuda.is_available() else 10
    losses = trainer.step(next(source), seconds / total)
    losses.answers.item()
    log("first step done; the clock starts")  # compilation is not training time
    started = reported = saved = time.monotonic()
    while (used := seconds + time.monotonic() - started) < total:
        losses = trainer.step(next(source), used / total)
        now = time.monotonic()
        if trainer.n_steps % every == 0:
            log(
                f"step {trainer.n_steps}, {used:.0f} s: loss {losses.answers.item():.4f}, types "
                f"{losses.types.item():.3f}, colors {losses.colors.item():.3f}, "
                f"{(now - reported) / every * 1e3:.0f} ms a step; {trainer.score.report()}"
            )
            reported = now
        if now - saved > _SAVE_EVERY:
            save(args.out, trainer, used)
            saved = now
    save(args.out, trainer, total)


def main() -> None:
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "log.txt")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = prepare_tokenizer(args)
    n_tokens = Tokenizer.from_str(tokenizer).get_vocab_size()
    preset = PRESETS[args.preset]
    vocab_size = -(-n_tokens // 64) * 64
    preset = replace(preset, language=replace(preset.language, vocab_size=vocab_size))
    trainer = Trainer(preset, device, args.lr, args.muon_lr, compiled=args.compile)
    seconds = 0.0
    if args.resume:
        state = torch.load(args.out / "state.pt", map_location=device, weights_only=True)
        trainer.load_state_dict(state["trainer"])
        seconds = state["seconds"]
    save_config(args.out, preset.vision, preset.language, preset.world)
    sizes = [sum(p.numel() for p in m.parameters()) for m in (trainer.encoder, trainer.language)]
    log(
        f"{device}, torch {torch.__version__}: vision {sizes[0] / 1e6:.2f} M parameters, language "
        f"model {sizes[1] / 1e6:.2f} M, {n_tokens} tokens, {preset.rows.batch_frames} frames a step"
    )
    trainer.model.train()
    # A resumed run sees other batches than the steps before it.
    source = batches(args, tokenizer, preset, args.seed + 7 * trainer.n_steps)
    train(args, trainer, source, seconds, log)
    trainer.score.report()
    trainer.model.eval()
    source = batches(args, tokenizer, preset, _EVALUATION_SEED + args.seed)
    loss = sum(trainer.evaluate(next(source)) for _ in range(args.eval_batches))
    if args.eval_batches:
        mean = loss / args.eval_batches
        log(f"fresh streams: loss {mean:.4f}, {trainer.score.report(details=True)}")


if __name__ == "__main__":
    main()
