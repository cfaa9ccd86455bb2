"""Families whose records hold one step on a screen: a command, a screenshot and the right action."""

from __future__ import annotations

from vlrl_data.record_families.base import Draft, Record, as_list, has, record_family


@record_family("ui_r1", ("id", "img_filename", "instruction", "bbox", "action"))
class UIR1:
    """UI-R1, ScreenSpot and AndroidControl: `img_filename`, `instruction`, and the `bbox` of a click or the
    name of another `action`."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "img_filename", "instruction") and ("bbox" in record or "action" in record)
        return "it has `img_filename`, `instruction` and `bbox` or `action`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        box = record.get("bbox")
        answer = {"action": "click", "box": box} if box else {"action": record["action"]}
        return {
            "id": record.get("id"),
            "question": record["instruction"],
            "images": as_list(record["img_filename"]),
            "answer": answer,
            "task": "gui",
        }


@record_family(
    "gui_r1",
    ("id", "image", "instruction", "history", "task_type", "gt_action", "gt_bbox", "gt_input_text"),
)
class GuiR1:
    """GUI-R1: `instruction`, `history`, `gt_action`, `gt_bbox` (a box or a point, in fractions of the sides),
    `gt_input_text`. `task_type` high or low gives the tasks gui_high and gui_low."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "image", "instruction", "gt_action", "gt_bbox")
        return "it has `image`, `instruction`, `gt_action` and `gt_bbox`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        place = list(record["gt_bbox"])
        history = record.get("history")
        answer = {
            "action": str(record["gt_action"]).lower(),
            "box" if len(place) == 4 else "point": place,
            "input_text": str(record.get("gt_input_text") or ""),
        }
        return {
            "id": record.get("id"),
            "question": str(record["instruction"]) + (f"\nDone before: {history}" if history else ""),
            "images": as_list(record["image"]),
            "answer": answer,
            "task": f"gui_{record.get('task_type') or 'high'}",
            "units": "unit",
        }
