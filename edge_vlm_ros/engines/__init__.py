"""Language engines: each has one owner thread and KV state of its own."""
