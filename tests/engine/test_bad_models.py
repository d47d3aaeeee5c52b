"""Every model that can't be opened gives one sentence that names what is wrong, and a next step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bad_models import BAD_MODELS, BadModel

from engine.checkpoints.model_folder import open_model
from engine.errors import EngineError
from engine.inspection import inspect_model

OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture(params=BAD_MODELS, ids=str)
def bad_model(request: pytest.FixtureRequest) -> BadModel:
    case: BadModel = request.param
    if case.needs_ordinary_user and os.geteuid() == 0:
        pytest.skip("permissions don't bind the superuser")
    return case


def test_bad_model_gives_one_sentence_and_a_next_step(bad_model: BadModel, tmp_path: Path) -> None:
    path = bad_model.make(tmp_path)
    with pytest.raises(EngineError) as caught:
        open_model(path)
    error = caught.value
    assert error.code == bad_model.code
    for fragment in bad_model.fragments:
        assert fragment in error.message
    for text in (error.message, error.hint):
        assert text.endswith(".")
        assert text.isprintable()
    assert len(error.message) < 400


def test_inspection_reports_what_opening_refuses(bad_model: BadModel, tmp_path: Path) -> None:
    path = bad_model.make(tmp_path)
    with pytest.raises(EngineError) as caught:
        open_model(path)
    report = inspect_model(path)
    first = report.problems[0]
    assert (first.code, first.message, first.hint) == (
        caught.value.code,
        caught.value.message,
        caught.value.hint,
    )


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="the system doesn't list a process's open files")
def test_a_bad_model_leaves_no_file_open(bad_model: BadModel, tmp_path: Path) -> None:
    path = bad_model.make(tmp_path)
    inspect_model(path)  # imports what it needs
    before = len(list(OPEN_FILES.iterdir()))
    with pytest.raises(EngineError) as caught:  # held on to: its frames keep alive what was not closed
        open_model(path)
    assert len(list(OPEN_FILES.iterdir())) == before, caught.value
    report = inspect_model(path)
    assert len(list(OPEN_FILES.iterdir())) == before, report.problems
