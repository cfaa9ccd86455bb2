"""The same step by TRL's GRPOTrainer (its own dataset, collation, processing, forward, loss and backward), on
the same completions."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch

from vlrl.types import Group


class Theirs:
    """A GRPOTrainer with given rollouts: only the training half of its step is run. Weights are float32;
    `bf16`: products are in bfloat16."""

    def __init__(
        self,
        folder: Path,
        groups: Sequence[Group],
        prompt_ids: Sequence[Sequence[int]],
        eos_id: int,
        checkpointing: bool,
        bf16: bool = False,
    ) -> None:
        from transformers import (
            AutoModelForCausalLM,
            AutoModelForImageTextToText,
            AutoProcessor,
            AutoTokenizer,
        )
        from trl import GRPOConfig, GRPOTrainer

        multimodal = bool(groups[0].prompt.images)
        loader: Any = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
        reader: Any = AutoProcessor if multimodal else AutoTokenizer
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = loader.from_pretrained(folder, dtype=torch.float32).to(device)
        self.groups, self.prompt_ids, self.multimodal = list(groups), prompt_ids, multimodal
        size = len(groups[0])
        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=size,
            gradient_accumulation_steps=len(groups), num_generations=size,
            max_completion_length=max(len(r) for g in groups for r in g),
            gradient_checkpointing=checkpointing, bf16=bf16, fp16=False,
            use_cpu=device == "cpu", loss_type="dapo", beta=0.0, shuffle_dataset=False, report_to=[],
            disable_tqdm=True, logging_steps=10**6,
        )  # fmt: skip
        self.trainer: Any = GRPOTrainer(
            model=self.model, args=config, train_dataset=self._dataset(),
            processing_class=reader.from_pretrained(folder, padding_side="left"),
            reward_funcs=cast(Any, self._rewards), rollout_func=self._rollouts,
        )  # fmt: skip
        self.trainer.current_gradient_accumulation_steps = len(groups)
        self.trainer.create_optimizer_and_scheduler(10)
        self.seen: Counter[str] = Counter()
        self._count()

    def _dataset(self) -> Any:
        from datasets import Dataset, Features, Image, List, Value

        rows: dict[str, list] = {
            "prompt": [[{"role": "user", "content": g.row.question}] for g in self.groups]
        }
        rows["row"] = list(range(len(self.groups)))
        dataset = Dataset.from_dict(rows)
        if self.multimodal:
            images = [
                [{"bytes": cast(Any, image).data, "path": None} for image in g.prompt.images]
                for g in self.groups
            ]
            part = Dataset.from_dict({"images": images}, features=Features({"images": List(Image())}))
            from datasets import concatenate_datasets

            dataset = concatenate_datasets([dataset, part], axis=1)
        assert Value is not None
        return dataset

    def _rollouts(self, prompts: list, trainer: Any) -> dict[str, Any]:
        size = len(self.groups[0])
        ids = [list(r.ids) for g in self.order for r in g]
        assert len(prompts) == len(ids), (len(prompts), len(ids), size)
        where = {id(g): i for i, g in enumerate(self.groups)}
        return {
            "prompt_ids": [list(self.prompt_ids[where[id(g)]]) for g in self.order for _ in g],
            "completion_ids": ids,
            "logprobs": None,
        }

    def _rewards(self, completions: list, row: list[int], **kwargs: Any) -> list[float]:
        return [r.reward for g in self.order for r in g]

    def step(self) -> float:
        """The loss; gradients are in the model."""
        trainer, count = self.trainer, len(self.groups)
        self.model.zero_grad()
        self.seen.clear()
        trainer._step, trainer._buffered_inputs = 0, None
        batches = iter(trainer.get_train_dataloader())
        loss = 0.0
        for index in range(count):
            batch = next(batches)
            if index == 0:
                self.order = [self.groups[row["row"]] for row in batch[:: len(self.groups[0])]]
            trainer.accelerator.gradient_state._set_sync_gradients(index == count - 1)
            loss += float(trainer.training_step(self.model, batch, None))
        return loss

    def _count(self) -> None:
        """Count calls by patching the library."""
        from datasets import Image
        from trl.trainer import utils

        def counted(name: str, function: Any, size: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                self.seen[name] += size(*args, **kwargs)
                return function(*args, **kwargs)

            return wrapper

        head = utils._ChunkedLogProbFunction.apply
        mock.patch.object(
            utils._ChunkedLogProbFunction,
            "apply",
            counted("head_rows", head, lambda hidden, *rest: len(hidden)),
        ).start()
        if not self.multimodal:
            return
        mock.patch.object(
            Image, "decode_example", counted("decoded", Image.decode_example, lambda *a, **k: 1)
        ).start()
        kind = type(self.trainer.processing_class.image_processor)

        def flat(images: Any) -> int:
            return sum(flat(i) for i in images) if isinstance(images, (list, tuple)) else 1

        mock.patch.object(
            kind, "__call__", counted("processed", kind.__call__, lambda me, images, *a, **k: flat(images))
        ).start()
        tower = self.model.model.visual

        def rows(module: Any, args: tuple, kwargs: dict) -> None:
            self.seen["patches"] += len((args or (kwargs["hidden_states"],))[0])

        tower.register_forward_pre_hook(rows, with_kwargs=True)

    def counters(self) -> dict[str, int]:
        """Counters of a step."""
        return {name: int(self.seen[name]) for name in ("decoded", "processed", "patches", "head_rows")}
