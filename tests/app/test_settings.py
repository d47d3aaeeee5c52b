"""Settings survive a restart, a damaged file, another version and a crash while they are written."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.chat_sampling import SamplingChoice
from app.context_policy import ContextPolicy
from app.language import Language
from app.load_marker import LoadMarker
from app.model_runs import RunChoice
from app.presets import Preset
from app.settings import (
    MAX_RECENT_MODELS,
    MAX_REMEMBERED_MODELS,
    SETTINGS_VERSION,
    Settings,
    Theme,
    load_settings,
    reset,
    save_changes,
    save_settings,
    with_model_sampling,
    with_recent_model,
)

FULL = Settings(
    window_geometry_base64="AdnQywAD",
    dock_state_base64="ZG9jaw==",
    splitter_state_base64="AAAA/w==",
    recent_models=(Path("/models/模型 1"), Path("/models/b.gguf")),
    last_model=Path("/models/模型 1"),
    last_conversation_id="abc",
    theme=Theme.DARK,
    language=Language.CHINESE,
    text_percent=150,
    device="cuda",
    vram_bytes=8 * 10**9,
    context_tokens=4096,
    context_policy=ContextPolicy.DROP_OLDEST,
    live_panel=True,
    folded_sections=("Now", "Model"),
    threads=2,
    state_ram_bytes=0,
    state_disk_bytes=5 * 10**9,
    presets=(Preset("Poet", "Write in verse."), Preset("诗人", "写诗。")),
    model_runs={Path("/models/模型 1"): RunChoice(4096, "q4", "native")},
    model_sampling={Path("/models/模型 1"): SamplingChoice(temperature=0.9, top_k=5, stop=("END",))},
    models_folder=Path("/models"),
    chats_folder=Path("/home/me/chats"),
    cache_folder=Path("/scratch/kestrel"),
    unknown={"from_the_future": {"a": [1, None]}},
)


def write_and_end(marker: LoadMarker, model: Path) -> None:
    """Has a process write the mark and end without removing it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(marker.write, (model,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "settings.json"


def test_every_field_comes_back_as_it_was_saved(path: Path) -> None:
    assert all(getattr(FULL, field.name) != getattr(Settings(), field.name) for field in fields(Settings))
    save_settings(path, FULL)
    loaded = load_settings(path)
    assert (loaded.settings, loaded.notices) == (FULL, ())
    save_settings(path, Settings())
    assert load_settings(path).settings == Settings()


@pytest.mark.skipif(os.name == "nt", reason="names on Windows are text")
def test_a_model_whose_name_is_not_text_is_remembered(path: Path) -> None:
    settings = Settings(last_model=Path(os.fsdecode(b"/models/\xff\xfe")))
    save_settings(path, settings)
    assert load_settings(path).settings == settings


def test_without_a_file_the_defaults_are_used_and_nothing_is_told(path: Path) -> None:
    loaded = load_settings(path)
    assert (loaded.settings, loaded.notices) == (Settings(), ())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1, 2]", b"null", b'"text"', b"\xff\xfe{}", b"[" * 100_000, b"\0" * 4096],
    ids=["empty", "cut off", "list", "null", "text", "not utf-8", "nested", "zeros"],
)
def test_a_damaged_file_is_kept_aside_and_the_defaults_are_used(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    loaded = load_settings(path)
    assert loaded.settings == Settings()
    assert [notice.code for notice in loaded.notices] == ["settings-damaged"]
    (kept,) = path.parent.glob("settings.damaged-*.json")
    assert kept.read_bytes() == content
    assert str(kept) in loaded.notices[0].hint
    assert load_settings(path).notices == ()  # told once


def test_a_file_that_cannot_be_read_is_not_written_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_settings(path, FULL)
    before = path.read_bytes()

    def refuse(*_arguments, **_options) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as unreadable:
        unreadable.setattr(Path, "read_text", refuse)
        loaded = load_settings(path)
    assert loaded.settings == Settings()
    assert [notice.code for notice in loaded.notices] == ["settings-unreadable"]
    save_settings(path, loaded.settings)  # what the program does when it ends, at the latest
    (kept,) = path.parent.glob("settings.unreadable-*.json")
    assert kept.read_bytes() == before


def test_a_mark_that_an_editor_put_in_front_does_no_damage(path: Path) -> None:
    save_settings(path, FULL)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_settings(path).settings == FULL


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_geometry_base64", 3),
        ("splitter_state_base64", None),
        ("recent_models", "/models/a"),
        ("recent_models", [1]),
        ("last_model", ""),
        ("last_model", "/models/a\0b"),
        ("window_geometry_base64", "\ud800"),
        ("last_conversation_id", "\udfff"),
        ("last_conversation_id", 7),
        ("theme", "pink"),
        ("theme", []),
        ("language", "klingon"),
        ("text_percent", 0),
        ("text_percent", 101),
        ("text_percent", 100.0),
        ("text_percent", "150 %"),
        ("text_percent", True),
        ("context_tokens", 0),
        ("state_ram_bytes", -1),
        ("device", "gpu"),
        ("device", ["cuda"]),
        ("vram_bytes", 0),
        ("state_ram_bytes", 1.5),
        ("state_disk_bytes", "5 GB"),
        ("state_disk_bytes", 10**16),
        ("context_tokens", "4096"),
        ("context_policy", "forget-everything"),
        ("live_panel", 1),
        ("folded_sections", "Now"),
        ("folded_sections", [1]),
        ("folded_sections", ["\ud800"]),
        ("threads", -1),
        ("threads", True),
        ("threads", 1.5),
        ("threads", 10**9),
        ("context_tokens", 10**30),
        ("presets", {}),
        ("model_sampling", []),
        ("model_runs", []),
        ("chats_folder", "chats"),
        ("cache_folder", ""),
    ],
)
def test_a_value_that_cannot_be_used_gives_way_to_its_default_alone(
    path: Path, name: str, value: object
) -> None:
    save_settings(path, FULL)
    data = json.loads(path.read_text())
    data[name] = value
    path.write_text(json.dumps(data))
    loaded = load_settings(path)
    assert loaded.settings == replace(FULL, **{name: getattr(Settings(), name)})
    assert [notice.code for notice in loaded.notices] == ["settings-value"]
    assert name in loaded.notices[0].message


def test_keys_of_a_newer_version_outlive_a_day_with_this_one(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"version": SETTINGS_VERSION + 1, "theme": "light", "wallpaper": "sea"}))
    loaded = load_settings(path)
    assert loaded.settings.theme is Theme.LIGHT
    save_settings(path, replace(loaded.settings, theme=Theme.DARK))
    data = json.loads(path.read_text())
    assert (data["wallpaper"], data["theme"]) == ("sea", "dark")


@pytest.mark.parametrize("content", [None, b"{", b"[1, 2]"], ids=["gone", "cut off", "list"])
def test_what_another_window_has_changed_stays(path: Path, content: bytes | None) -> None:
    """Unless its file can't be read any more: then everything is written."""
    save_settings(path, replace(FULL, theme=Theme.LIGHT, state_disk_bytes=0))
    mine = replace(FULL, theme=Theme.SYSTEM, context_tokens=64, threads=1)
    save_changes(path, mine, {"theme", "context_tokens"})
    assert load_settings(path).settings == replace(
        FULL, theme=Theme.SYSTEM, context_tokens=64, state_disk_bytes=0
    )
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    save_changes(path, mine, {"theme"})
    assert load_settings(path).settings == mine


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@hypothesis_settings(max_examples=50, deadline=None)
@given(
    data=st.dictionaries(
        st.sampled_from([field.name for field in fields(Settings)]) | st.text(max_size=5),
        json_values,
        max_size=8,
    )
)
def test_whatever_stands_in_the_file_the_program_starts_and_can_save(
    tmp_path_factory: pytest.TempPathFactory, data: dict
) -> None:
    path = tmp_path_factory.mktemp("settings") / "settings.json"
    path.write_text(json.dumps(data))
    settings = load_settings(path).settings
    save_settings(path, settings)
    assert load_settings(path).settings == settings


def test_a_failed_write_leaves_the_old_file_and_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_settings(path, FULL)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr("app.files.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save_settings(path, Settings())
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_recent_models_are_newest_first_each_once_and_not_too_many() -> None:
    settings = Settings()
    for number in [*range(12), 5]:
        settings = replace(settings, recent_models=with_recent_model(settings, Path(f"/m/{number}")))
    assert settings.recent_models[:2] == (Path("/m/5"), Path("/m/11"))
    assert len(settings.recent_models) == len(set(settings.recent_models)) == MAX_RECENT_MODELS


def test_the_sampling_of_models_is_remembered_until_there_are_too_many() -> None:
    warm = SamplingChoice(temperature=1.0)
    settings = Settings()
    for number in range(MAX_REMEMBERED_MODELS + 1):
        remembered = with_model_sampling(settings, Path(f"/m/{number}"), warm)
        settings = replace(settings, model_sampling=remembered)
    assert len(settings.model_sampling) == MAX_REMEMBERED_MODELS
    assert Path("/m/0") not in settings.model_sampling
    assert Path("/m/7") not in with_model_sampling(settings, Path("/m/7"), SamplingChoice())


def test_a_reset_leaves_what_a_person_made_and_where_they_are() -> None:
    after = replace(FULL, **reset(FULL))
    assert after.presets == FULL.presets
    assert after.chats_folder == FULL.chats_folder, "or the conversations would be gone from sight"
    assert after.recent_models == FULL.recent_models
    assert after.last_conversation_id == FULL.last_conversation_id
    assert after.unknown == FULL.unknown
    assert (after.theme, after.device, after.vram_bytes) == (Theme.SYSTEM, "auto", None)
    assert (after.model_sampling, after.models_folder, after.state_disk_bytes) == ({}, None, None)


def test_a_load_marker_names_its_model_until_it_is_removed(tmp_path: Path) -> None:
    marker = LoadMarker(tmp_path / "data" / "loading.json")
    assert marker.read() is None
    marker.remove()  # none there is no error
    write_and_end(marker, Path("/models/模型 1"))
    assert marker.read() == Path("/models/模型 1")
    marker.remove()
    assert marker.read() is None


def test_a_load_that_another_window_is_busy_with_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "loading.json"
    LoadMarker(path).write(Path("/models/a"))
    assert LoadMarker(path).read() is None, "the process that wrote it is this one, which runs"
    mark = json.loads(path.read_text())
    path.write_text(json.dumps(mark | {"started": mark["started"] - 60}))
    assert LoadMarker(path).read() == Path("/models/a"), "a number that the system has given out again"


@pytest.mark.parametrize("process", [None, "7", -1, 0, 2**80, True])
def test_a_mark_that_names_no_process_tells_of_a_crash(tmp_path: Path, process: object) -> None:
    path = tmp_path / "loading.json"
    path.write_text(json.dumps({"model": "/models/a", "process": process, "started": 0.0}))
    assert LoadMarker(path).read() == Path("/models/a")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"model": 1}', b"\xff"])
def test_a_damaged_load_marker_stands_for_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "loading.json"
    path.write_bytes(content)
    assert LoadMarker(path).read() is None
