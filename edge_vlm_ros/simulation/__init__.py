"""The runtime on a virtual clock: the same decisions, engines that only let time pass."""
