"""Stands in for vllm, of which SGLang takes one operator where it has no kernels of its own."""
