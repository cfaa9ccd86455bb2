"""What vLLM's worker learns from us (`worker_extension_cls`): loading the policy's weights in place, completely."""

from __future__ import annotations

from typing import Any


class Loader:
    """Mixed into vLLM's worker class."""

    model_runner: Any

    def vlrl_load(self, weights: Any = None, folder: str | None = None) -> None:
        """Load weights from an iterator of (name, tensor), in this process, or from a checkpoint folder."""
        self.model_runner.reload_weights(weights_iterator=weights, weights_path=folder)
        for module in self.model_runner.get_model().modules():
            # A head that is tied to the embedding gets no weights of its own in a reload, and on CPU it computes from a repacked copy.
            if type(module).__name__ == "ParallelLMHead" and getattr(module, "quant_method", None) is not None:
                module.__dict__.pop("_already_called_process_weights_after_loading", None)
                module.quant_method.process_weights_after_loading(module)
