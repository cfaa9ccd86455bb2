"""A vision-language model with a pretrained mind: a small random tower before a language model, aligned on
drawn scenes, then trained by RL.

    vlrl fetch smollm2
    python scripts/make_smol_vlm.py runs/smol_vlm                  # assemble, teach the tower, align, train:
    about half an hour of one CPU core python scripts/make_smol_vlm.py runs/smol_vlm --assemble       # all
    but the last two: the model's folder and the config of the run vlrl train runs/smol_vlm/smol_vlm.yaml
    # the rest of the first line

The shape is SmolVLM's (arXiv:2504.05299; Idefics3, arXiv:2408.12637, sec. 3): a SigLIP-like tower, pixel
shuffle, one linear connector, and the language model with its own tokenizer and weights; with SmolLM2-135M it
is SmolVLM-256M's, with a tower of 2 million weights in place of 93. A picture is one square of 96 pixels, 144
patches, 16 tokens. Released models take a tower that was trained before; here `smol_vlm_tower.py` trains it,
without the language model's layers, to give the word embeddings of what each sixteenth of a picture shows
(`--tower-steps`). Three phases follow, on drawn scenes (vlrl_data's generators, which need no download) and
the handwritten digits of scikit-learn:

    connect    the tower and the connector learn to answer; the language model is frozen
    instruct   everything learns to answer, at a small rate
    rl         GRPO on the same questions

Held out are counting, reading a digit, the object nearest to an edge, and the box of an object. It sees drawn
shapes of a few colours and single digits, at the size it was aligned on, and nothing else: no picture of the
world is in its training.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

SIDE, PATCH, SHUFFLE = 96, 8, 3
TOKENS = (SIDE // PATCH // SHUFFLE) ** 2
TOWER = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768}
SCENES = {"size": SIDE, "least": 18, "most": 28}  # pixels of the picture and of the objects


def processor_of(tokenizer: Any) -> Any:
    """SmolVLM's processor over a language model's tokenizer, which gains the tokens that stand for
    pictures."""
    from transformers import SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

    from vlrl.policy.families.smolvlm import TILES, SmolVLM

    tokenizer = copy.deepcopy(tokenizer)
    ending = tokenizer.convert_tokens_to_ids("<|im_end|>")
    if ending is None or ending == tokenizer.unk_token_id:
        raise typer.BadParameter(
            "the language model's tokenizer has no <|im_end|>; take a model whose chat template is ChatML"
        )
    tokenizer.add_special_tokens({"extra_special_tokens": [*SmolVLM.extra_tokens.values(), *TILES]})
    for name, token in SmolVLM.extra_tokens.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    tokenizer.chat_template = SmolVLM.template
    side = {"longest_edge": SIDE}
    image = SmolVLMImageProcessor(size=side, max_image_size=side)
    video = SmolVLMVideoProcessor(
        size=side, max_image_size=side, video_sampling={"video_size": side, "max_frames": 8, "fps": 1}
    )
    return SmolVLMProcessor(image, tokenizer, video, image_seq_len=TOKENS, chat_template=SmolVLM.template)


def assemble(text_folder: str, folder: Path, tower: Mapping[str, int] | None = None, seed: int = 0) -> None:
    """Write a SmolVLM whose language model is that of `text_folder`, weight for weight. Rows of new tokens
    are the mean of the others; tower and connector are random."""
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
    )

    text = AutoModelForCausalLM.from_pretrained(text_folder, dtype=torch.float32)
    processor = processor_of(AutoTokenizer.from_pretrained(text_folder))
    rows = -(-len(processor.tokenizer) // 64) * 64
    tied = bool(text.config.tie_word_embeddings)
    config = SmolVLMConfig(
        text_config=text.config.to_dict() | {"vocab_size": rows},
        vision_config=dict(tower or TOWER) | {"image_size": SIDE, "patch_size": PATCH},
        image_token_id=processor.tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=processor.tokenizer.pad_token_id,
        scale_factor=SHUFFLE,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(seed)
    model = SmolVLMForConditionalGeneration(config).float()
    weights = dict(text.model.state_dict())
    weights["embed_tokens.weight"] = longer(weights["embed_tokens.weight"], rows)
    model.model.text_model.load_state_dict(weights)
    if not tied:
        model.lm_head.weight.data.copy_(longer(text.lm_head.weight.data, rows))
    model.tie_weights()
    model.generation_config.eos_token_id = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def longer(table: Any, rows: int) -> Any:
    """An embedding table with `rows` rows: its own, then the mean of them."""
    import torch

    return torch.cat([table, table.mean(0, keepdim=True).expand(rows - len(table), -1)])


def config_of(folder: Path) -> dict[str, Any]:
    """The config of the run: phases `connect`, `instruct` and `rl`."""
    sources: dict[str, dict[str, Any]] = {
        "counting": {"name": "gen_counting", **SCENES, "high": 3, "others": 1},
        "reading": {"name": "lab_digits", "size": SIDE, "task": "reading"},
        "nearest": {"name": "gen_question", **SCENES, "ask": ["open"], "objects": 2, "task": "nearest"},
        "grounding": {"name": "gen_boxes", **SCENES, "ask": ["grounding"], "others": 1, "units": "unit"},
    }
    supervised = {
        "keeps": "all", "rollout": {"name": "expert"}, "policy_loss": {"name": "zero_loss"},
        "advantage": {"name": "grpo"},
        "loss_terms": {"*": None, "nll": {"name": "nll", "coef": 1.0}}, "group_size": 1,
        "prompts_per_step": 32,
    }  # fmt: skip
    return {
        "extends": ["base/rl", "methods/grpo"],
        "policy": {"name": "smolvlm", "model": str(folder / "assembled")},
        "output": str(folder / "run"),
        "threads": 1,
        "prompt_template": {"name": "chat", "style": "answer", "instruction": "", "prefix": "<answer>"},
        "data": {
            "train": {name: source | {"weight": 1.0, "count": 4000} for name, source in sources.items()},
            "heldout": {name: source | {"split": "heldout", "count": 60} for name, source in sources.items()},
        },
        "rewards": {
            "counting": {"name": "counting", "weight": 1.0, "tasks": ["counting"]},
            "words": {"name": "exact", "weight": 1.0, "tasks": ["reading", "nearest"]},
            "box": {"name": "iou", "weight": 1.0, "tasks": ["grounding"]},
        },
        "outcome": {"counting": "counting", "reading": "words", "nearest": "words", "grounding": "box"},
        "sampling": {"name": "plain", "max_tokens": 32},
        "max_prompt_tokens": 512,
        "watch": {"checkpoint_every": 0, "heldout_every": 20, "heldout_answers": 8},
        "phases": {
            "connect": supervised | {"steps": 20, "trainable": {"name": "parts", "freeze": ["language"]},
                "optimizer": {"lr": 5e-4, "warmup": 5}},
            "instruct": supervised | {"steps": 80,
                "optimizer": {"lr": 2e-4, "warmup": 10, "schedule": "cosine"}},
            "rl": {
                "steps": 20, "prompts_per_step": 16, "group_size": 8, "optimizer": {"lr": 1e-5, "warmup": 2,
                    "schedule": "cosine"},
            },
        },
    }  # fmt: skip


def main(
    folder: Annotated[Path, typer.Argument(help="Where model, config and run go.")],
    text: Annotated[
        str, typer.Option(help="The language model: a folder, or fetched:smollm2.")
    ] = "fetched:smollm2",
    only_assemble: Annotated[bool, typer.Option("--assemble", help="Do not train.")] = False,
    tower_steps: Annotated[
        int, typer.Option(help="Steps of 32 pictures that train the tower beforehand; 0 leaves it random.")
    ] = 300,
    words: Annotated[
        list[str] | None, typer.Option("--set", help="Overrides of the run, such as phases.connect.steps=20.")
    ] = None,
) -> None:
    """Assemble, align, train."""
    from vlrl.config.model_folder import fetched_folder

    source = str(fetched_folder("smollm2", "float32")) if text == "fetched:smollm2" else text
    if not (Path(source) / "config.json").is_file():
        typer.echo(
            (
                f"make_smol_vlm: no language model in {source}; run `vlrl fetch smollm2`, or give a folder "
                "with --text"
            ),
            err=True,
        )
        raise typer.Exit(2)
    if not (folder / "assembled" / "config.json").is_file():
        assemble(source, folder / "assembled")
        if tower_steps:
            import smol_vlm_tower

            smol_vlm_tower.teach(folder / "assembled", tower_steps, SCENES)
    config = folder / "smol_vlm.yaml"
    config.write_text(yaml.safe_dump(config_of(folder), sort_keys=False), encoding="utf-8")
    typer.echo(f"{folder / 'assembled'}: assembled; {config}: the run", err=True)
    if not only_assemble:
        raise typer.Exit(
            subprocess.call([sys.executable, "-m", "vlrl", "train", str(config), *(words or [])])
        )


if __name__ == "__main__":
    typer.run(main)
