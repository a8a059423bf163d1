"""Frames in grids between this process and an engine behind llama.cpp's RPC backend."""

from test_transfer_rpc import *  # noqa: F403
