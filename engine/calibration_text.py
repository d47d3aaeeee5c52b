"""The text by which 4-bit codes are chosen: prose, dialogue, code, tables and mathematics, in English and
Chinese above all, so that a short text meets what inputs a model is likely to see.
"""

from __future__ import annotations

from importlib.resources import files


def calibration_text() -> str:
    return files("engine.weights").joinpath("calibration.txt").read_text(encoding="utf-8")
