"""What a run needs before a GPU is rented: parameters, memory per rank, FLOPs, time and cost, from a config
and a model's public shape.

`releases` shapes of released models, `shape` sizes of the model of a config (built on the meta device),
`blocks` saved activations of a layer, `memory` bytes per rank, `compute` FLOPs and
seconds, `gpus` a table of devices, `workload` what a step does, `layouts` how ranks share it, `plan` all of
it together with what does not fit, `report` its text.
"""
