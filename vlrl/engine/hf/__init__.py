"""Engine `hf`: samples with the trainer's own weights in this process.

`engine` is the plug-in, `scheduler` the continuous batching of one call, `sequence` the state of one
completion, `kv_cache` the keys and values with shared prompts, `conversation_cache` those of conversations
between calls, `sampler` the draw of tokens, `lookup` drafts for speculative decoding.
"""
