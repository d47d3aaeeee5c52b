"""A screen reader has a name for everything that can be used, and hears what happens by itself."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAbstractItemView, QLabel, QWidget

from surfaces import SURFACES, controls, told


DECORATION = ("Swatch", "IconLabel")  # beside words that say the same


def spoken_name(widget: QWidget) -> str:
    interface = QAccessible.queryAccessibleInterface(widget)
    assert interface is not None, told(widget)
    return interface.text(QAccessible.Text.Name)


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_every_control_has_a_name_for_screen_readers(surface: QWidget) -> None:
    seen = list(controls(surface))
    assert seen
    assert [told(one) for one in seen if not spoken_name(one).strip()] == []


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_every_row_of_a_list_is_read_whole(surface: QWidget) -> None:
    for view in surface.findChildren(QAbstractItemView):
        if not view.isVisible():
            continue
        interface = QAccessible.queryAccessibleInterface(view)
        for row in range(view.model().rowCount()):
            child = interface.child(row)
            assert child is not None, told(view)
            assert child.text(QAccessible.Text.Name).strip(), f"row {row} of {told(view)}"


@pytest.mark.parametrize("surface", SURFACES, indirect=True)
def test_what_is_only_painted_is_also_said(surface: QWidget) -> None:
    """A bar, a plot, a meter: nothing but its accessible name tells a screen reader what it shows."""
    painted = [
        one
        for one in surface.findChildren(QWidget)
        if one.isVisible()
        and any(
            "paintEvent" in vars(kind) for kind in type(one).__mro__ if kind.__module__.startswith("app.")
        )
        and not any(child.isVisible() for child in one.findChildren(QWidget))
        and type(one).__name__ not in DECORATION
        and not (isinstance(one, QLabel) and not one.text())
    ]
    assert [told(one) for one in painted if not spoken_name(one).strip()] == []
