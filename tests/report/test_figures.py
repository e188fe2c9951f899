"""Image files are written whole, with the permissions that a user expects, or refused early."""

import os

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from fewer.errors import InputError
from fewer.report.figures import check_target, draw_reconstructions, save_figure


@pytest.fixture
def figure():
    rng = np.random.default_rng(0)
    images = rng.random((4, 3, 3))
    return draw_reconstructions(images, images, np.eye(3, dtype=bool), columns=2)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_is_respected(tmp_path, figure, umask, mode):
    before = os.umask(umask)
    try:
        save_figure(figure, tmp_path / "a.png")
    finally:
        os.umask(before)
    assert (tmp_path / "a.png").stat().st_mode & 0o777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("name", ["a.png", "a.PNG", "a", "deep/er/a.jpg"])
def test_images_can_be_read_again(tmp_path, figure, name):
    written = save_figure(figure, tmp_path / name)
    kind = "jpg" if name.endswith("jpg") else "png"
    with written.open("rb") as stream:
        assert imread(stream, format=kind).std() > 0


def test_bad_targets_are_named(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        check_target(tmp_path)
    with pytest.raises(InputError, match=r"ends in '\.docx'; use .*\.pdf.*\.png"):
        check_target(tmp_path / "a.docx")
    with pytest.raises(InputError, match=r"notes\.txt is not a folder; choose another"):
        check_target(tmp_path / "notes.txt" / "deep" / "a.png")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(InputError, match=f"no permission to write to {tmp_path}; choose"):
        check_target(tmp_path / "deep" / "a.png")


def test_a_failure_while_writing_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(self, path, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(InputError, match=r"a\.png cannot be written \(No space left on device\)"):
        save_figure(Figure(), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
