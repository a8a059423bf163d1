# Set-up, demo and tests on a machine without ROS. On a robot with ROS 2: colcon build.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-qemu test-qnn test-rknn test-vulkan lint colcon-test bench soak clean

TEST_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
ENV := . tools/setup/env.sh &&

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ROS_DISTRO=kilted, PYTHON=python3.12, TEST_ARGS='-k history' choose otherwise."

setup: ## Make .venv with ROS 2, llama.cpp and all else (once about 10 minutes; root installs with apt)
	@bash tools/setup/setup.sh

demo: setup ## Two cameras, six questions, answers beside the truth
	@$(ENV) python -m edge_vlm_ros.cli.demo

lint: setup ## ruff and mypy
	@$(ENV) ruff check .
	@$(ENV) mypy

test: lint ## Everything: ruff, mypy, pytest (TEST_ARGS for pytest)
	@$(ENV) python -m pytest $(TEST_ARGS)

test-vulkan: setup ## Engines on Vulkan, on Mesa's software driver (once 15 minutes to build)
	@$(ENV) python -m tools.setup.vulkan
	@$(ENV) EDGE_VLM_ROS_TEST_VULKAN=1 GGML_VK_VISIBLE_DEVICES=0 \
	  LLAMA_CPP_LIB_PATH="$$VIRTUAL_ENV/vulkan/lib" python -m pytest test/vulkan $(TEST_ARGS)

test-rknn: setup ## The demo encoder in Rockchip's converter and simulator (650 MB, 4 minutes)
	@$(ENV) python -m tools.setup.npu_rknn
	@$(ENV) EDGE_VLM_ROS_TEST_RKNN=1 python -m pytest test/npu/rknn/test_rknn_simulator.py $(TEST_ARGS)

test-qemu: setup ## The encoder with Rockchip's library for aarch64, under qemu (850 MB, 4 minutes)
	@$(ENV) python -m tools.setup.npu_rknn
	@$(ENV) python -m tools.setup.qemu
	@$(ENV) python -m tools.setup.npu_qnn --arm
	@$(ENV) EDGE_VLM_ROS_TEST_QEMU=1 python -m pytest test/npu $(TEST_ARGS)

test-qnn: setup ## The demo encoder on the emulator of Qualcomm's NPU (600 MB, 4 minutes)
	@$(ENV) python -m tools.setup.npu_qnn
	@$(ENV) EDGE_VLM_ROS_TEST_QNN=1 python -m pytest test/npu/qnn $(TEST_ARGS)

colcon-test: setup ## The tests the way a ROS workspace runs them (TEST_ARGS for pytest)
	@$(ENV) PYTEST_ADDOPTS="$(TEST_ARGS)" bash tools/setup/colcon_test.sh

bench: setup ## Benchmarks, printed as ratios of one run, 20 minutes (BENCH_ARGS)
	@$(ENV) python -m benchmarks.run $(BENCH_ARGS)

soak: setup ## Half an hour of everything at once on too little (SOAK_ARGS='--minutes 5')
	@$(ENV) python -m tools.soak $(SOAK_ARGS)

clean: ## Remove .venv and everything built (the wheel cache in ~/.cache/edge_vlm_ros stays)
	rm -rf .venv build install log .mypy_cache .ruff_cache .pytest_cache
