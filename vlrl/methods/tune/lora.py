"""A low-rank adapter is trained, the model itself stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vlrl.registry import ConfigError, register
from vlrl.stages import Tune


@register("lora")
@dataclass(frozen=True, kw_only=True)
class LoRA(Tune):
    """W x + (alpha / r) B A x, with A (r x in) and B (out x r) trained, B = 0 at first; `dora` trains the columns' lengths apart.

    Paper: LoRA, arXiv:2106.09685, eq. 3; DoRA, arXiv:2402.09353, eq. 5; rank-stabilised scale alpha / sqrt(r), arXiv:2312.03732.
    QLoRA (arXiv:2305.14314) is this with `policy.quantize: nf4`. `parts` are the parts of the model that get adapters ("language", "projector",
    "vision"), `targets` a regular expression on the names of linear layers ("" means all of them but the output head). Edge: the reference
    policy is the model with the adapter off, so no copy is kept. A later phase goes on with the adapter that is there.
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    dora: bool = False
    rank_stabilised: bool = False
    parts: tuple[Literal["language", "projector", "vision"], ...] = ("language",)
    targets: str = ""

    def __post_init__(self) -> None:
        if self.r < 1 or not self.parts:
            raise ValueError(f"r must be at least 1 and parts must not be empty, got r={self.r}, parts={self.parts}")

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        options = {"r": self.r, "lora_alpha": self.alpha, "lora_dropout": self.dropout, "use_dora": self.dora, "use_rslora": self.rank_stabilised}
        policy.add_adapter(options, self.parts, self.targets)
        trained = [p for p in policy.model.parameters() if p.requires_grad]
        if not trained:
            raise ConfigError("tune: the adapter has no trainable weights")
        return [{"params": trained}]
