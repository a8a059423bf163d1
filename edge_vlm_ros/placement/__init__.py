"""Where KV is: residency on engines, snapshots in host memory, prefixes, eviction. No threads."""
