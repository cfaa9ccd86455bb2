"""What is read from logits: log-probs of tokens, and the entropy of the distribution.

Both functions materialise tensors of the logits' size; for long sequences call them on chunks.

Shape legend: V vocabulary; ... any leading dimensions, for instance (B, T).
"""

from __future__ import annotations

from vlrl.services.lazy import Tensor


def logprobs_from_logits(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of the given tokens: log softmax(logits / temperature) at the token.

    Logits that predict token t stand at position t: shift a causal model's logits by one before the call.

    Args:
        logits: (..., V), with gradient.
        ids: (...) token ids.
        temperature: what the logits are divided by; above 0.

    Returns:
        (...) log-probs in nats.

    Raises:
        ValueError: for shapes that do not match, or a temperature of 0 or less.

    >>> logprobs_from_logits(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor([-0.6931])
    """
    if logits.shape[:-1] != ids.shape:
        raise ValueError(
            f"ids has shape {tuple(ids.shape)}, logits {tuple(logits.shape)}; logits must have one "
            "dimension more, the vocabulary"
        )
    scaled = _scaled(logits, temperature)
    return scaled.gather(-1, ids[..., None])[..., 0] - scaled.logsumexp(-1)


def entropy_from_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Shannon entropy of softmax(logits / temperature).

        H = -sum_v p_v log p_v

    Args:
        logits: (..., V), with gradient; -inf marks tokens that cannot be drawn.
        temperature: what the logits are divided by; above 0.

    Returns:
        (...) nats; 0 where a single token is possible.

    Raises:
        ValueError: for a temperature of 0 or less.

    >>> entropy_from_logits(torch.tensor([[0.0, 0.0], [0.0, float("-inf")]]))
    tensor([0.6931, -0.0000])
    """
    logp = _scaled(logits, temperature).log_softmax(-1)
    probability = logp.exp()
    # 0 * -inf is 0 here: a token that cannot be drawn adds nothing
    return -(probability * logp.masked_fill(probability == 0, 0.0)).sum(-1)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be above 0")
    return logits if temperature == 1 else logits / temperature
