"""Models of vLLM's kernels: from a card and one workload to a configuration, with its reasons."""
