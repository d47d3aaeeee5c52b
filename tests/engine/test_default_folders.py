"""The engine's folders are the person's own, and apart from each other."""

from __future__ import annotations

from pathlib import Path

from app.paths import AppPaths
from engine.default_folders import code_folder, states_folder, strips_folder


def test_folders_are_the_persons_and_none_lies_in_another(user_folders: Path) -> None:
    folders = [code_folder(), strips_folder(), states_folder()]
    assert all(user_folders in folder.parents for folder in folders)
    assert not any(a in (b, *b.parents) for a in folders for b in folders if a is not b)
    assert not any(folder.exists() for folder in folders)


def test_states_lie_beside_the_conversations_that_the_program_keeps(user_folders: Path) -> None:
    assert AppPaths.default().states_folder == states_folder()
    assert AppPaths.default().conversations_file.parent == states_folder().parent
