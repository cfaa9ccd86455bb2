"""Trains the tower and connector of a SmolVLM to give word embeddings: each picture token the words of what
is there.

Supervised embedding alignment, for a model assembled by `make_smol_vlm.py`. With x_k the connector's output
for cell k of a picture (16 of them), E_c the mean of the language model's embeddings of the words of class c
("red circle", "7", "nothing"), and c_k the class of the object whose centre is in cell k:

    loss = CE(softmax_c(-a |x_k - E_c|^2), c_k) + |x_k - E_(c_k)|^2 / var(E) + |W f_k - box_k|^2

a is 6 over the least squared distance of two classes. The last term, over cells with an object, has the
connector's input f_k tell the object's place in its cell and its side, in cells (W is thrown away). Empty
cells weigh a quarter. The language model's layers are not run, so a step costs a few percent of one of
training.

Source: the idea of aligning visual tokens with word embeddings, SEA (arXiv:2408.11813), whose labels come
from CLIP; here the drawing knows them. Ours: the losses, the classes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F
from vlrl_data.generators.boxes import KINDS
from vlrl_data.generators.scenes import GenCounting, draw_scene
from vlrl_data.lab.digits import draw_digit
from vlrl_data.lab.shipped_images import digit_ids, label_of

WORDS = [" nothing", *(f" {colour} {shape}" for colour, shape in KINDS), *(str(digit) for digit in range(10))]
DIGIT = 1 + len(KINDS)  # class of the digit 0
BATCH, MOST, EMPTY = 32, 4, 0.25  # pictures a step, objects in a scene, weight of an empty cell


class Seen(NamedTuple):
    """Pictures, the class of each cell, [pictures, cells], and (x, y, side) of the object there in cells,
    [pictures, cells, 3]."""

    pictures: list[Any]
    classes_PC: Tensor
    boxes_PC3: Tensor


def draw(rng: random.Random, scenes: Mapping[str, Any], cells: int, split: str, count: int = BATCH) -> Seen:
    """Three scenes of one to `MOST` objects for every single digit, which fills the picture: its class is
    that of the four middle cells."""
    source = GenCounting(**scenes)
    classes_PC, boxes_PC3 = (
        torch.zeros(count, cells * cells, dtype=torch.long),
        torch.zeros(count, cells * cells, 3),
    )
    cell, pictures, middle = source.size / cells, [], cells // 2
    for k in range(count):
        if k % 4 == 3:
            digit = rng.choice(digit_ids(split))
            pictures.append(draw_digit(digit, source.size, (0, 0), 0.0, 0))
            for row in (middle - 1, middle):
                classes_PC[k, row * cells + middle - 1 : row * cells + middle + 1] = DIGIT + label_of(digit)
            continue
        few = rng.sample(KINDS, 2)  # of few kinds, so that a scene shows several of one
        things = source.things(rng, rng.choices(few, k=rng.randint(1, MOST)))
        pictures.append(draw_scene(source.size, things))
        for colour, shape, left, top, side in things:
            x, y = (left + side / 2) / cell, (top + side / 2) / cell
            place = int(y) * cells + int(x)
            classes_PC[k, place] = 1 + KINDS.index((colour, shape))
            boxes_PC3[k, place] = torch.tensor([x % 1, y % 1, side / cell])
    return Seen(pictures, classes_PC, boxes_PC3)


def word_embeddings(model: Any, tokenizer: Any) -> Tensor:
    """[classes, hidden]: the mean embedding of each class's words."""
    table_VH = model.get_input_embeddings().weight.detach()
    return torch.stack(
        [table_VH[tokenizer(word, add_special_tokens=False).input_ids].mean(0) for word in WORDS]
    )


class Taught:
    """The model, the classes' embeddings, the head for places, and the loss of a batch."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor
        self.embeds_CH = word_embeddings(model, processor.tokenizer)
        self.sharpness = 6 / F.pdist(self.embeds_CH).min().item() ** 2
        self.variance = self.embeds_CH.var(0).sum().item()
        self.where = nn.Linear(model.model.connector.modality_projection.proj.in_features, 3)

    def parameters(self) -> list[nn.Parameter]:
        core = self.model.model
        return [*core.vision_model.parameters(), *core.connector.parameters(), *self.where.parameters()]

    def features(self, pictures: list[Any]) -> Tensor:
        """The connector's input, [pictures, cells, features]."""
        core = self.model.model
        pixels = self.processor.image_processor([[picture] for picture in pictures], return_tensors="pt")[
            "pixel_values"
        ].flatten(0, 1)
        side = pixels.shape[-1] // core.config.vision_config.patch_size
        mask = torch.ones(len(pixels), side, side, dtype=torch.bool)
        hidden = core.vision_model(pixel_values=pixels, patch_attention_mask=mask).last_hidden_state
        return core.connector.pixel_shuffle(hidden, core.connector.scale_factor)

    def logits(self, tokens_PCH: Tensor) -> Tensor:
        return -self.sharpness * torch.cdist(tokens_PCH.flatten(0, 1), self.embeds_CH) ** 2

    def loss(self, seen: Seen) -> Tensor:
        features = self.features(seen.pictures)
        tokens_PCH = self.model.model.connector.modality_projection(features)
        wanted = seen.classes_PC.flatten()
        full = wanted > 0
        weight = torch.where(full, 1.0, EMPTY)
        named = F.cross_entropy(self.logits(tokens_PCH), wanted, reduction="none")
        near = (tokens_PCH.flatten(0, 1) - self.embeds_CH[wanted]).pow(2).sum(-1) / self.variance
        placed = seen.boxes_PC3.flatten(0, 1)
        drawn = placed[:, 2] > 0
        where = (self.where(features.flatten(0, 1)[drawn]) - placed[drawn]).pow(2).sum(-1).mean()
        return ((named + near) * weight).sum() / weight.sum() + where

    @torch.no_grad()
    def accuracy(self, seen: Seen) -> dict[str, float]:
        """Shares of cells named right: empty ones, those with an object, those of digits."""
        tokens_PCH = self.model.model.connector.modality_projection(self.features(seen.pictures))
        right, wanted = (
            self.logits(tokens_PCH).argmax(-1) == seen.classes_PC.flatten(),
            seen.classes_PC.flatten(),
        )
        kinds = {"empty": wanted == 0, "objects": (wanted > 0) & (wanted < DIGIT), "digits": wanted >= DIGIT}
        return {name: round(right[mask].float().mean().item(), 3) for name, mask in kinds.items()}


def tell(step: int, loss: float) -> None:
    """The loss of every 25th step on the terminal."""
    if step % 25 == 0:
        typer.echo(f"tower: step {step}, loss {loss:.3f}", err=True)


def teach(
    folder: Path,
    steps: int,
    scenes: Mapping[str, int],
    lr: float = 1e-3,
    seed: int = 0,
    told: Callable[[int, float], None] = tell,
) -> dict[str, float]:
    """Train tower and connector of the model in `folder`, which is written anew. Returns the held-out
    accuracy of cells."""
    from transformers import AutoProcessor, SmolVLMForConditionalGeneration

    model = SmolVLMForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(folder)
    config: Any = model.config
    vision = config.vision_config
    cells = vision.image_size // vision.patch_size // config.scale_factor
    torch.manual_seed(seed)
    taught, rng = Taught(model, processor), random.Random(seed)
    optimizer = torch.optim.AdamW(taught.parameters(), lr=lr, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        loss = taught.loss(draw(rng, scenes, cells, "train"))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(taught.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        told(step, loss.item())
    found = taught.accuracy(draw(random.Random(seed + 1), scenes, cells, "heldout", 128))
    typer.echo(f"tower: held-out cells named right: {found}", err=True)
    model.save_pretrained(folder)
    return found
