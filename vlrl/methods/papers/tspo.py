"""TSPO: an agent chooses the frames that a frozen video model sees, and is trained by what the model then
answers and by whether the frames are those that matter.

    tspo            rollout strategy: selections of frames, each answered by the frozen policy
    tspo.locating   reward shaping: + the share of the selected frames that matter
    tspo.agent      callback: trains the agent by the advantages of its selections

Paper: Tang et al. 2025 (TSPO), arXiv:2508.04369; Hui-design/TSPO at 19f4ecb2: model/temporal_agent.py,
model/utils.py:69-83, src/open_tspo/trainer/tspo_trainer.py:434-640, train_deepspeed.sh.

Shapes: T frames, D features.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlrl.functional.exact import mean
from vlrl.methods.core.critic import CriticState
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import CallbackContext, PhaseContext, SamplingContext, StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, RewardShaping, StepCounts, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Clip, Edited, Group, Prompt, Request, Rollout, RowError

if TYPE_CHECKING:
    from vlrl.methods.common.frame_selector import FrameEncoder, FrameSelector

SELECTED: Annotation[list] = Annotation(
    "tspo.selected", list, hint="rollout: {name: tspo}", doc="places of the frames that the rollout saw"
)
AGENT = Capability("tspo.agent", hint="callbacks: {agent: {name: tspo.agent}}")
RELEVANT = "relevant"  # in row.meta: places of the frames that matter, of those that are decoded


@dataclass(frozen=True)
class SelectedFrames(Edited):
    """`base`, a video, cut down to the frames `places`."""

    places: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.base.key}/frames-{'-'.join(map(str, self.places))}"

    def load(self) -> Clip:
        clip = self.base.load()
        if not isinstance(clip, Clip):
            raise TypeError(f"frames can be selected only of a video, not of {self.base.key}")
        share = len(self.places) / max(len(clip), 1)
        return Clip(clip.frames_THWC[list(self.places)], clip.fps * share)


def gumbel_top(logits_T: Tensor, count: int, uniforms: Sequence[float]) -> list[int]:
    """The `count` largest of logits plus Gumbel noise -log(-log u), in order: a draw without replacement."""
    u_T = torch.as_tensor(list(uniforms), dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    noisy_T = logits_T.detach().double().cpu() - (-u_T.log()).log()
    return sorted(noisy_T.topk(min(count, len(noisy_T))).indices.tolist())


@dataclass
class Scene:
    """What the agent reads of a prompt: the features of its frames and of its question."""

    image_TD: Tensor
    text_D: Tensor


class Agent:
    """The run's agent: its module, the frozen encoder, and the scenes of the step by prompt."""

    def __init__(self, run: StageContext, encoder: str, heads: int, window: int) -> None:
        from vlrl.methods.common.frame_selector import FrameSelector, open_encoder

        self.encoder: FrameEncoder = open_encoder(encoder, run.policy.device)
        self.module: FrameSelector = FrameSelector(self.encoder.size, heads, window, run.seed)
        self.module.to(run.policy.device)
        self.scenes: dict[str, Scene] = {}

    def scene(self, prompt: Prompt, most: int) -> tuple[Scene, list[int]]:
        """The features of a prompt's video and question, and the places of its frames: at most `most`, evenly
        spread."""
        clip = prompt.videos[0].load()
        assert isinstance(clip, Clip)
        count = min(len(clip), most)
        places = [round(i * (len(clip) - 1) / max(count - 1, 1)) for i in range(count)]
        if prompt.key not in self.scenes:
            with torch.no_grad():
                image_TD = self.encoder.images(clip.frames_THWC[places])
                self.scenes[prompt.key] = Scene(image_TD, self.encoder.text(prompt.row.question))
        return self.scenes[prompt.key], places


@dataclass
class TspoState(StepCounts):
    """`agent` is the run's; `step` counts the phase's steps."""

    agent: Any = transient()
    step: int = 0


@register("tspo")
@dataclass(frozen=True)
class Tspo(Independent):
    """TSPO's rollouts: n selections of frames of each prompt's video, and the frozen policy's greedy answer
    to each.

    The agent scores up to `decoded` frames (`FrameSelector`); frames are drawn without replacement from
    softmax(score / tau) by the Gumbel top-k trick, `frames` of rows with `meta.relevant`, half as many of
    others. tau falls linearly from `tau` to `last_tau` over the phase. SELECTED has the frames. Paper:
    arXiv:2508.04369, sec. 3; tspo_trainer.py:496-516. Deviates: relevant frames are the row's own, where the
    release puts a video between twelve others as it is loaded. Edge: a prompt without exactly one video is a
    RowError. Logs the share of selected frames that matter.

    Attributes:
        encoder: A CLIP model (a folder, a hub id), or "tiny": random features.
    """

    state_class = TspoState
    encoder: str = "openai/clip-vit-large-patch14"
    frames: int = 16
    decoded: int = 128
    window: int = 12
    heads: int = 8
    tau: float = 0.025
    last_tau: float = 0.01
    provides = (SELECTED,)
    requires = (AGENT,)

    def __post_init__(self) -> None:
        if min(self.frames, self.window, self.heads) < 1 or self.decoded < self.frames:
            raise ValueError(
                f"frames={self.frames}, window={self.window} and heads={self.heads} must be at least 1, "
                f"decoded={self.decoded} at least frames"
            )
        if not 0 < self.last_tau <= self.tau:
            raise ValueError(f"last_tau={self.last_tau} must be above 0 and at most tau={self.tau}")

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if phase.settings.optimizer.lr > 0:
            raise ConfigError(
                f"rollout: {self.name!r} trains its agent before a frozen policy; set optimizer: {{lr: 0.0}}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.agent = run.shared("tspo", lambda: Agent(run, self.encoder, self.heads, self.window))

    def temperature(self) -> float:
        """tau of the step."""
        steps = max(self.run.settings.steps, 1)
        return self.tau - (self.tau - self.last_tau) * min(self.state.step / steps, 1.0)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        requests = []
        for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            sampling = replace(run.sampling(prompt, 0), temperature=0.0)
            for attempt, chosen in enumerate(self.selections(prompt, count, run)):
                media = SelectedFrames(prompt.videos[0], tuple(chosen))
                shown = replace(prompt, videos=(media,))
                requests.append(Request(shown, sampling, 1, self.seeds(run, prompt), tag=(place, attempt)))
        found: dict[tuple[int, int], Rollout] = {}
        for completion in run.engine.generate(requests):
            rollout = found[completion.request.tag] = run.make_rollout(completion)
            seen = rollout.prompt.videos[0]
            assert isinstance(seen, SelectedFrames)
            SELECTED.set(rollout, list(seen.places))
            if (share := located(rollout)) is not None:
                self.state.add(located=share, selections=1.0)
        return [
            Group(prompt, [found[place, attempt] for attempt in range(count)])
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
        ]

    def selections(self, prompt: Prompt, count: int, run: SamplingContext) -> list[list[int]]:
        """The frames of each attempt, in their order."""
        if len(prompt.videos) != 1 or prompt.images:
            raise RowError(
                f"row {prompt.row.id!r}: rollout 'tspo' selects frames of one video; it has "
                f"{len(prompt.videos)} videos and {len(prompt.images)} pictures"
            )
        scene, places = self.state.agent.scene(prompt, self.decoded)
        with torch.no_grad():
            logits_T = self.state.agent.module(scene.image_TD, scene.text_D) / self.temperature()
        wanted = self.frames if prompt.row.meta.get(RELEVANT) else max(self.frames // 2, 1)
        drawn = []
        for attempt in range(count):
            seed = f"{run.seed}/{run.phase}/{run.step}/{prompt.row.id}/{attempt}"
            rng = random.Random(hashlib.blake2b(seed.encode(), digest_size=8).digest())
            drawn.append([places[i] for i in gumbel_top(logits_T, wanted, [rng.random() for _ in places])])
        return drawn

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        self.state.step += 1
        self.state.agent.scenes.clear()

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {"tspo/located": self.state.share("located", "selections")}


def located(rollout: Rollout) -> float | None:
    """The share of a rollout's frames that matter; None for a row that does not say which do."""
    relevant, chosen = rollout.row.meta.get(RELEVANT), SELECTED.get(rollout, [])
    return mean([float(place in relevant) for place in chosen]) if relevant and chosen else None


@register("tspo.locating")
@dataclass(frozen=True)
class TspoLocating(RewardShaping):
    """TSPO's temporal locating reward: r + weight (selected frames that matter / selected frames); rows that
    do not say which frames matter get r + weight, as in the release.

    Paper: arXiv:2508.04369, sec. 3; tspo_trainer.py:570-573, tspo.py:146-159. Units: reward.
    """

    weight: float = 1.0
    requires = (SELECTED,)

    def __call__(self, group: Group) -> list[float]:
        shares = [located(rollout) for rollout in group]
        return [
            rollout.reward + self.weight * (1.0 if share is None else share)
            for rollout, share in zip(group, shares, strict=True)
        ]


@register("tspo.agent")
@dataclass(frozen=True)
class TspoAgent(Callback):
    """TSPO's update of the agent: one step of AdamW on the step's selections.

        L = - mean over rollouts of A mean_t exp(log p_t - sg(log p_t)),  p = softmax(score / tau)

    t runs over the rollout's frames; A is its advantage. Paper: arXiv:2508.04369, eq. of sec. 3;
    tspo_trainer.py:539-607 (no KL, no clip; one update per batch). Logs the loss and `gain`, by how much
    the update raises the mean log p of the frames that matter above that of the others. Edge: groups of
    equal rewards have no gradient. State: the agent and Adam's moments. Ranks average their gradients.
    """

    state_class = CriticState
    lr: float = 5e-4
    max_grad_norm: float = 1.0
    provides = (AGENT,)
    requires = (SELECTED,)

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.max_grad_norm <= 0:
            raise ValueError(f"lr={self.lr} and max_grad_norm={self.max_grad_norm} must be above 0")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        rollout: Any = run.rollout
        if not isinstance(rollout, Tspo):
            raise ConfigError("callbacks: 'tspo.agent' trains the agent of rollout: {name: tspo}")
        self.state.module = run.shared(
            "tspo", lambda: Agent(run, rollout.encoder, rollout.heads, rollout.window)
        ).module
        self.state.optimizer = torch.optim.AdamW(self.state.module.parameters(), lr=self.lr, weight_decay=0.0)

    def __call__(
        self, run: CallbackContext, groups: Sequence[Group]
    ) -> Mapping[str, float | tuple[float, float]]:
        strategy: Any = self.run.rollout
        optimizer, module = self.state.optimizer, self.state.module
        own = [group for group in run.groups if any(SELECTED.on(rollout) for rollout in group)]
        count = max(sum(run.gather([sum(len(group) for group in own)])), 1)
        optimizer.zero_grad()
        total, before, after = 0.0, [], []
        for group in own:
            logp_T, places = self.log_probs(strategy, group)
            loss = torch.zeros((), device=logp_T.device)
            for rollout in group:
                at = [places.index(place) for place in SELECTED[rollout]]
                chosen = logp_T[at]
                loss = loss - rollout.advantage * (chosen - chosen.detach()).exp().mean()
            (loss / count).backward()
            total += float(loss.detach())
            before += self.margin(group, logp_T, places)
        for p in module.parameters():
            p.grad = run.sum_tensor(torch.zeros_like(p) if p.grad is None else p.grad)
        torch.nn.utils.clip_grad_norm_(module.parameters(), self.max_grad_norm)
        optimizer.step()
        with torch.no_grad():
            for group in own:
                after += self.margin(group, *self.log_probs(strategy, group))
        gains = [new - old for new, old in zip(after, before, strict=True)]
        return {"loss": (total, float(count)), "gain": (sum(gains), float(len(gains)))} if own else {}

    def log_probs(self, strategy: Tspo, group: Group) -> tuple[Tensor, list[int]]:
        """log softmax(score / tau) of the frames of a group's video, and their places."""
        scene, places = strategy.state.agent.scene(group.prompt, strategy.decoded)
        logits_T = self.state.module(scene.image_TD, scene.text_D) / strategy.temperature()
        return logits_T.log_softmax(-1), places

    @staticmethod
    def margin(group: Group, logp_T: Tensor, places: Sequence[int]) -> list[float]:
        """[mean log p of the frames that matter, less that of the others], or [] where the row does not tell
        them apart."""
        relevant = group.row.meta.get(RELEVANT) or ()
        matters_T = torch.tensor([place in relevant for place in places], device=logp_T.device)
        if not relevant or bool(matters_T.all()) or not bool(matters_T.any()):
            return []
        return [float((logp_T[matters_T].mean() - logp_T[~matters_T].mean()).detach())]
