"""The forms in which products on the card read rows of activations."""

from __future__ import annotations

from engine.config import Activations

PLANES: dict[Activations, int] = {"float": 0, "int8": 1, "int8x2": 2}
"""Of 8 bits each; 0: rows are read as numbers."""

INTEGER_FORMS: list[Activations] = [form for form, planes in PLANES.items() if planes]
