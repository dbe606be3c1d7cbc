"""The data: the same bytes, in an order that follows from one number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overnight_trainer import TrainerError
from overnight_trainer.data import Sampler, build_corpus, open_corpus, standard_library

TEXT = torch.arange(10_000).to(torch.uint8)


def sampler(position: int = 0, seed: int = 0) -> Sampler:
    made = Sampler(TEXT, seq_len=16, seed=seed)
    made.position = position
    return made


def test_rows_depend_on_position_and_seed_alone() -> None:
    """Looking ahead is the same as having moved; another seed is another order."""
    assert torch.equal(sampler().rows(7, 5), sampler(position=7).rows(0, 5))
    assert not torch.equal(sampler().rows(0, 5), sampler(seed=1).rows(0, 5))


def test_rows_are_cut_from_the_text() -> None:
    """A row is seq_len + 1 consecutive bytes, so that each byte has a successor to predict."""
    rows = sampler().rows(0, 50)
    assert rows.shape == (50, 17)
    assert torch.equal((rows[:, 1:] - rows[:, :-1]) % 256, torch.ones(50, 16).long())


def test_an_epoch_visits_each_window_once_and_the_next_differs() -> None:
    """No window is repeated or left out before the epoch ends; then the text is cut elsewhere."""
    text = torch.arange(16 * 40).to(torch.int16)  # here each start can be told apart
    made = Sampler(text, seq_len=16)
    first, second = (made.rows(epoch * made.windows, made.windows)[:, 0] for epoch in (0, 1))
    assert len(set(first.tolist())) == made.windows
    assert len(set((first // 16).tolist())) == made.windows
    assert first.tolist() != second.tolist()


def test_corpus_is_written_once_and_again_when_the_files_change(tmp_path: Path) -> None:
    """An attempt finds the corpus of the one before; other files give another corpus."""
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    files[0].write_bytes(b"a" * 3000)
    files[1].write_bytes(b"b" * 3000)
    corpus = build_corpus(files, tmp_path)
    inode = corpus.stat().st_ino
    assert corpus.read_bytes() == b"a" * 3000 + b"\n" + b"b" * 3000 + b"\n"
    assert build_corpus(files, tmp_path).stat().st_ino == inode
    files[1].write_bytes(b"c" * 4000)
    assert build_corpus(files, tmp_path) != corpus
    assert not list(tmp_path.glob("*.tmp"))


def test_held_out_text_is_not_trained_on(tmp_path: Path) -> None:
    """The two parts are the text, cut in two."""
    path = tmp_path / "text"
    path.write_bytes(bytes(range(250)) * 40)
    text, held_out = open_corpus(path, seq_len=16)
    assert bytes(text.tolist()) + bytes(held_out.tolist()) == path.read_bytes()
    assert len(held_out) == 256


def test_too_little_text_and_missing_files_are_usage_errors(tmp_path: Path) -> None:
    """One line that names the flag."""
    (tmp_path / "short").write_bytes(b"hello")
    with pytest.raises(TrainerError, match="--data"):
        open_corpus(tmp_path / "short", seq_len=64)
    with pytest.raises(TrainerError, match="absent: No such file or directory; check --data"):
        build_corpus([tmp_path / "absent"], tmp_path)


def test_standard_library_is_the_default_text() -> None:
    """Megabytes of source that every machine has, sorted, without tests and installed packages."""
    files = standard_library()
    folders = {part for path in files for part in path.parts}
    assert files == standard_library()
    assert "argparse.py" in {path.name for path in files}
    assert not {"site-packages", "idle_test", "__pycache__"} & folders
    assert sum(path.stat().st_size for path in files) > 1_000_000
