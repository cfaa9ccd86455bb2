"""Engine `hf` against the model's own `generate`, for every family: text, one image, two images, a video; all
in one call, with shared prompts."""

import pytest
import torch
from samples import PROMPTS, policy_of, processed

from vlrl.engine.hf.engine import HF
from vlrl.plugins.registry import get, names
from vlrl.policy import Family
from vlrl.types import Request, Sampling

VIDEO = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm", "llava_onevision"}


def by_generate(engine: HF, request: Request) -> list[int]:
    lm = engine.lm
    inputs = processed(lm.policy, request.prompt)
    if not lm.family.is_multimodal:
        inputs.pop("token_type_ids", None)
    length = inputs["input_ids"].shape[1]
    known = {k: v for k, v in inputs.items() if isinstance(v, torch.Tensor) or k == "second_per_grid_ts"}
    out = lm.model.generate(
        **known, do_sample=False, max_new_tokens=request.sampling.max_tokens,
        suppress_tokens=list(lm.forbidden_ids) or None,
        eos_token_id=[*lm.eos_ids, *request.sampling.stop_ids], pad_token_id=lm.pad_id,
    )  # fmt: skip
    return out[0, length:].tolist()


@pytest.mark.parametrize("name", names(Family))
def test_greedy_equals_generate(name: str) -> None:
    policy = policy_of(name, tiny={"std": 0.2, "layers": 4})
    engine = HF(prefill_tokens=64).attach(policy)
    kinds = [
        kind
        for kind in PROMPTS
        if kind == "text" or (get(Family, name).is_multimodal and (kind != "video" or name in VIDEO))
    ]
    requests = [
        Request(PROMPTS[kind], Sampling(temperature=0.0, max_tokens=length, stop_ids=stops), tag=(kind,
            length))
        for kind in kinds for length, stops in ((20, ()), (14, tuple(range(0, 300, 7))))
    ]  # fmt: skip
    found = {c.request.tag: c.ids for c in engine.generate(requests)}
    assert found == {request.tag: by_generate(engine, request) for request in requests}
    assert len({tuple(ids) for ids in found.values()}) > len(kinds), "outputs depend on the prompt"
    assert engine.counters["prompts_prefilled"] == len(kinds)
