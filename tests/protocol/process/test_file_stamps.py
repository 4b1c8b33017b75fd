"""A process reads the files of its server's start, or none."""

import os
import shutil

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.process.file_stamps import check_unchanged, stamp_of, unchanged


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    return file


def write_later(file, content=b"WEIGHTS"):
    """As another program does: the file's time is another, even if the clock has not moved on."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_bytes(content)
    os.utime(file, ns=(before + 1, before + 1))


def remove_and_read(file):
    file.unlink()
    file.read_bytes()


def test_files_that_are_the_same_are_read(path, tmp_path):
    absent = tmp_path / "chat_template.jinja"
    stamps = [stamp_of(path), stamp_of(absent)]
    path.chmod(0o400)  # changes nothing that is read
    os.link(path, tmp_path / "backup")
    with unchanged(stamps):
        path.read_bytes()


def test_a_file_written_in_place_with_the_same_size_has_changed(path):
    stamps = [stamp_of(path)]
    write_later(path)
    with pytest.raises(ConfigError, match=r"model\.safetensors was changed after the server had started"):
        check_unchanged(stamps)


def test_a_link_to_another_file_has_changed(path, tmp_path):
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(path)
    stamps = [stamp_of(link)]
    shutil.copyfile(path, other)
    write_later(other)
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(ConfigError, match="link was changed"):
        check_unchanged(stamps)


def test_a_removed_file_and_an_added_one_are_named(path, tmp_path):
    absent = tmp_path / "chat_template.jinja"
    removed, added = [stamp_of(path)], [stamp_of(absent)]
    path.unlink()
    absent.write_text("{{ messages }}")
    with pytest.raises(ConfigError, match=r"model\.safetensors was removed"):
        check_unchanged(removed)
    with pytest.raises(ConfigError, match=r"chat_template\.jinja was added"):
        check_unchanged(added)


def test_a_change_while_files_are_read_is_found_afterwards(path):
    with pytest.raises(ConfigError, match="was changed"), unchanged([stamp_of(path)]):
        write_later(path)


def test_a_change_is_named_in_place_of_the_error_that_it_causes(path):
    with pytest.raises(ConfigError, match="was removed"), unchanged([stamp_of(path)]):
        remove_and_read(path)


def test_an_error_of_unchanged_files_stays(path):
    with pytest.raises(KeyError), unchanged([stamp_of(path)]):
        raise KeyError("other")
