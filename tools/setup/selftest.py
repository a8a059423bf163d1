"""Last step of the set-up: everything that was installed can be loaded."""

from __future__ import annotations

from tools.setup.progress import Failed, run, step
from tools.setup.venv import Venv, digest

_CODE = """
import importlib
import llama_cpp.llama_cpp as llama
assert llama.llama_supports_rpc(), "llama.cpp was built without RPC"
for name in "cv2 numpy onnxruntime pydantic yaml rclpy sensor_msgs.msg diagnostic_msgs.msg".split():
    importlib.import_module(name)
from rclpy.type_support import check_for_type_support
from edge_vlm_ros import action, msg, srv
for module in (action, msg, srv):
    for name in module.__all__ if hasattr(module, "__all__") else dir(module):
        kind = getattr(module, name)
        if isinstance(kind, type):
            check_for_type_support(kind)
rclpy = importlib.import_module("rclpy")
rclpy.init()
rclpy.create_node("setup_self_test").destroy_node()
rclpy.shutdown()
"""


def ensure(venv: Venv) -> bool:
    """Load everything once after a change. True if anything was done."""
    stamps = sorted((venv.path / "setup").glob("*.stamp"))
    key = digest(_CODE, *(stamp.read_text() for stamp in stamps if stamp.stem != "selftest"))
    if venv.is_done("selftest", key):
        return False
    step(6, "Check: loading llama.cpp, ONNX Runtime, rclpy and the interfaces (a few seconds)")
    local = {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "RMW_IMPLEMENTATION": "rmw_fastrtps_cpp"}
    log = venv.logs / "selftest.log"
    try:
        run([venv.python, "-c", _CODE], log, progress="$^", env=venv.environment() | local)
    except Failed as failure:
        raise Failed(f"the installation does not work: {failure}") from None
    venv.done("selftest", key)
    return True
