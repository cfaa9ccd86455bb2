"""Rollout engines: `hf` (in process, shared prefill), `vllm`, `vllm_server`, `fake` (no model)."""
