"""Engines `vllm` (vLLM in this process) and `vllm_server` (vLLM servers beside the trainer).

`inprocess` and `server` are the plug-ins, `common` is their base class, `prompts` translates requests and
completions, `weights` sends the policy's weights. `logits` is imported by vLLM's worker by name; no other
module imports vLLM at the top.
"""
