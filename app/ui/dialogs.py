"""Questions the window asks. All are shown without blocking: answers stream on while one stands open."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QLabel, QMessageBox, QPushButton, QWidget

from app.language import tr
from app.ui.style_sheet import set_role
from app.ui.text_size import scaled
from app.ui.theme import SPACE_L, SPACE_XL, SPACE_XS
from engine.version import VERSION

_WEB_SCHEMES = ("http", "https")
_MAX_SHOWN_ADDRESS = 300  # characters
_EXPLANATION_WIDTH = 320  # pixels, at the least
_ICON_PLACE = 21  # that Qt leaves at the left, where these have no icon


def ask(
    parent: QWidget,
    question: str,
    explanation: str,
    *,
    accept: str,
    on_accept: Callable[[], None],
    destructive: bool = False,
) -> QMessageBox:
    """Asks a yes/no question; `on_accept` runs when the person presses the button called `accept`."""
    box = _box(parent, question, explanation)
    yes = box.addButton(
        accept, QMessageBox.ButtonRole.DestructiveRole if destructive else QMessageBox.ButtonRole.AcceptRole
    )
    no = box.addButton(QMessageBox.StandardButton.Cancel)
    set_role(yes, "danger" if destructive else "primary")
    box.setDefaultButton(_as_push_button(no if destructive else yes))
    box.setEscapeButton(no)
    box.buttonClicked.connect(lambda pressed: on_accept() if pressed is yes else None)
    box.open()
    return box


def tell(parent: QWidget, sentence: str, explanation: str = "") -> QMessageBox:
    """Shows something the person asked for."""
    box = _box(parent, sentence, explanation)
    box.addButton(QMessageBox.StandardButton.Close)
    box.open()
    return box


def ask_to_open(
    parent: QWidget, url: QUrl, *, open_url: Callable[[QUrl], object] = QDesktopServices.openUrl
) -> QMessageBox:
    """Asks before a link of an answer is opened; anything but http and https is refused in words."""
    address = url.toDisplayString(QUrl.ComponentFormattingOption.FullyEncoded)
    shown = address if len(address) <= _MAX_SHOWN_ADDRESS else address[:_MAX_SHOWN_ADDRESS] + "…"
    if url.scheme().lower() not in _WEB_SCHEMES or not url.host():
        return tell(
            parent,
            tr("This link isn't opened."),
            tr("Only web addresses are opened from a chat:\n{address}", address=shown),
        )
    return ask(
        parent,
        tr("Open {host} in your browser?", host=url.host()),
        tr("The model wrote this address; it may lead anywhere:\n{address}", address=shown),
        accept=tr("Open"),
        on_accept=lambda: open_url(url),
    )


def ask_to_delete_message(parent: QWidget, *, on_accept: Callable[[], None]) -> QMessageBox:
    return ask(
        parent,
        tr("Delete this message?"),
        tr(
            "It is removed from this computer, and so is everything that ever followed it in the "
            "conversation."
        ),
        accept=tr("Delete"),
        on_accept=on_accept,
        destructive=True,
    )


def show_about(parent: QWidget) -> QMessageBox:
    return tell(
        parent,
        tr("Kestrel Chat {version}", version=VERSION),
        tr("Chat with language models that run on your own computer. Nothing you write leaves it."),
    )


def _box(parent: QWidget, text: str, informative: str) -> QMessageBox:
    box = QMessageBox(parent)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowTitle("Kestrel Chat")
    box.setTextFormat(Qt.TextFormat.PlainText)  # titles and addresses are not markup
    box.setText(text)
    box.setInformativeText(informative)
    explanation = box.findChild(QLabel, "qt_msgbox_informativelabel")
    if explanation is not None:  # Qt makes it as narrow as lines break, which Chinese does anywhere
        explanation.setMinimumWidth(scaled(_EXPLANATION_WIDTH))
    if (layout := box.layout()) is not None:
        layout.setContentsMargins(SPACE_XL - _ICON_PLACE, SPACE_XL - SPACE_XS, SPACE_XL, SPACE_L)
    return box


def _as_push_button(button: object) -> QPushButton:
    assert isinstance(button, QPushButton)
    return button
