"""Rollout engines: `hf` (in process, shared prefill), `vllm`, `vllm_server`, `openai` (evaluation only),
`fake` (no model)."""
