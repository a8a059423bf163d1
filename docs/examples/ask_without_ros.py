"""Show a runtime six camera frames and ask about them, without ROS."""

import random
from pathlib import Path

from edge_vlm_ros.demo.stream import TableStream
from edge_vlm_ros.runtime import Runtime, RuntimeConfig, StreamConfig, load_profile

PROFILE = Path(__file__).parents[2] / "config" / "models" / "demo.yaml"
camera = TableStream(seed=4)

streams = (StreamConfig("table", max_pending_frames=6),)  # no frame is dropped below
runtime = Runtime(RuntimeConfig(load_profile(PROFILE), streams))
runtime.load()
runtime.activate()
for k in range(6):
    runtime.add_frame("table", camera.frame(k), stamp_ns=k * 200_000_000)
for kind in ("describe", "count", "change"):
    question = camera.ask_about(0, 6, random.Random(kind), kind)
    print(f"Question: {question.text}\nAnswer: ", end="")
    answer = runtime.ask("table", question.text)
    for update in answer:
        print(update.delta, end="", flush=True)
    result = answer.result()
    print(f"\nTruth: {camera.truth(question, 0, 6)}")
    print(f"{result.context.frames} frames, first token after {result.metrics.ttft_ms:.0f} ms\n")
runtime.close()
