"""Overlap of axis-aligned boxes: IoU, GIoU, DIoU, CIoU. Numpy only, continuous areas (width = x2 - x1, no
"+1" pixels).

Shape legend: N, M boxes, 4 = (x1, y1, x2, y2) in any one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

BoxLike = Sequence[float] | np.ndarray


def as_boxes(boxes: Sequence[BoxLike] | np.ndarray) -> np.ndarray:
    """(N, 4) float64. Raises ValueError unless every entry is four finite numbers."""
    array_N4 = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) if len(boxes) else np.zeros((0, 4))
    if len(array_N4) != len(boxes) or not np.isfinite(array_N4).all():
        raise ValueError(f"boxes must be N x 4 finite numbers [x1, y1, x2, y2], got {boxes!r}")
    return array_N4


def sizes(boxes_N4: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Widths and heights, (N,) each; 0 where the corners are swapped."""
    return np.maximum(boxes_N4[:, 2] - boxes_N4[:, 0], 0.0), np.maximum(boxes_N4[:, 3] - boxes_N4[:, 1], 0.0)


def areas(boxes_N4: np.ndarray) -> np.ndarray:
    """(N,) areas in squared units."""
    widths_N, heights_N = sizes(boxes_N4)
    return widths_N * heights_N


def intersections(a_N4: np.ndarray, b_M4: np.ndarray) -> np.ndarray:
    """(N, M) areas of overlap. 0 for a box with swapped corners."""
    low_NM2 = np.maximum(a_N4[:, None, :2], b_M4[None, :, :2])
    high_NM2 = np.minimum(a_N4[:, None, 2:], b_M4[None, :, 2:])
    side_NM2 = np.maximum(high_NM2 - low_NM2, 0.0)
    valid_NM = (areas(a_N4) > 0)[:, None] & (areas(b_M4) > 0)[None, :]
    return np.where(valid_NM, side_NM2[..., 0] * side_NM2[..., 1], 0.0)


def _hulls(a_N4: np.ndarray, b_M4: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, M) widths and heights of the smallest box around each pair."""
    low_NM2 = np.minimum(a_N4[:, None, :2], b_M4[None, :, :2])
    high_NM2 = np.maximum(a_N4[:, None, 2:], b_M4[None, :, 2:])
    side_NM2 = np.maximum(high_NM2 - low_NM2, 0.0)
    return side_NM2[..., 0], side_NM2[..., 1]


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """The quotient; 0 where the denominator is not positive."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def iou_matrix(a_N4: np.ndarray, b_M4: np.ndarray) -> np.ndarray:
    """(N, M) of |a & b| / |a | b|, in [0, 1]; 0 where a box has no area."""
    overlap_NM = intersections(a_N4, b_M4)
    return np.clip(_ratio(overlap_NM, areas(a_N4)[:, None] + areas(b_M4)[None, :] - overlap_NM), 0.0, 1.0)


def giou_matrix(a_N4: np.ndarray, b_M4: np.ndarray) -> np.ndarray:
    """(N, M) of IoU - (|hull| - |a | b|) / |hull|, in [-1, 1]; -1 where a box has no area.

    Paper: Generalized Intersection over Union, arXiv:1902.09630, alg. 1.
    """
    overlap_NM = intersections(a_N4, b_M4)
    union_NM = areas(a_N4)[:, None] + areas(b_M4)[None, :] - overlap_NM
    width_NM, height_NM = _hulls(a_N4, b_M4)
    hull_NM = width_NM * height_NM
    return _where_valid(_ratio(overlap_NM, union_NM) - _ratio(hull_NM - union_NM, hull_NM), a_N4, b_M4, -1.0)


def diou_matrix(a_N4: np.ndarray, b_M4: np.ndarray) -> np.ndarray:
    """(N, M) of IoU - (distance of centres / diagonal of the hull)^2, in [-1, 1]; -1 where a box has no area.

    Paper: Distance-IoU Loss, arXiv:1911.08287, eq. 7.
    """
    return _where_valid(iou_matrix(a_N4, b_M4) - _centre_distance(a_N4, b_M4), a_N4, b_M4, -1.0)


def ciou_matrix(a_N4: np.ndarray, b_M4: np.ndarray) -> np.ndarray:
    """(N, M) of DIoU - alpha v, with v = 4/pi^2 (atan w/h - atan w'/h')^2 and alpha = v / (1 - IoU + v), in
    [-1.5, 1].

    Paper: Distance-IoU Loss, arXiv:1911.08287, eq. 8-11. Edge: -1.5 where a box has no area.
    """
    iou_NM = iou_matrix(a_N4, b_M4)
    (width_N, height_N), (width_M, height_M) = sizes(a_N4), sizes(b_M4)
    aspect_N, aspect_M = np.arctan2(width_N, height_N), np.arctan2(width_M, height_M)
    v_NM = 4 / np.pi**2 * (aspect_N[:, None] - aspect_M[None, :]) ** 2
    alpha_NM = _ratio(v_NM, 1 - iou_NM + v_NM)
    return _where_valid(iou_NM - _centre_distance(a_N4, b_M4) - alpha_NM * v_NM, a_N4, b_M4, -1.5)


def _centre_distance(a_N4: np.ndarray, b_M4: np.ndarray) -> np.ndarray:
    """(N, M) of (distance of the centres / diagonal of the hull)^2."""
    centre_N2, centre_M2 = (a_N4[:, :2] + a_N4[:, 2:]) / 2, (b_M4[:, :2] + b_M4[:, 2:]) / 2
    squared_NM = ((centre_N2[:, None] - centre_M2[None, :]) ** 2).sum(-1)
    width_NM, height_NM = _hulls(a_N4, b_M4)
    return _ratio(squared_NM, width_NM**2 + height_NM**2)


def _where_valid(values_NM: np.ndarray, a_N4: np.ndarray, b_M4: np.ndarray, worst: float) -> np.ndarray:
    """The values clipped to [worst, 1]; `worst` where a box has no area."""
    valid_NM = (areas(a_N4) > 0)[:, None] & (areas(b_M4) > 0)[None, :]
    return np.where(valid_NM, np.clip(values_NM, worst, 1.0), worst)


OVERLAPS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "iou": iou_matrix,
    "giou": giou_matrix,
    "diou": diou_matrix,
    "ciou": ciou_matrix,
}
WORST: dict[str, float] = {"iou": 0.0, "giou": -1.0, "diou": -1.0, "ciou": -1.5}


def overlap(a: BoxLike, b: BoxLike, kind: str = "iou") -> float:
    """Overlap of two boxes; `kind`: iou, giou, diou or ciou. Raises ValueError for an unknown kind or a box
    that is not four finite numbers."""
    if kind not in OVERLAPS:
        raise ValueError(f"kind: {kind!r} is not an overlap; use one of {', '.join(OVERLAPS)}")
    return float(OVERLAPS[kind](as_boxes([a]), as_boxes([b]))[0, 0])


def matrix(
    a: Sequence[BoxLike] | np.ndarray, b: Sequence[BoxLike] | np.ndarray, kind: str = "iou"
) -> np.ndarray:
    """(N, M) overlaps of two lists of boxes; empty lists give an empty matrix. Raises ValueError as `overlap`
    does."""
    if kind not in OVERLAPS:
        raise ValueError(f"kind: {kind!r} is not an overlap; use one of {', '.join(OVERLAPS)}")
    return OVERLAPS[kind](as_boxes(a), as_boxes(b))
