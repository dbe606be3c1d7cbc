"""Files of torch.save that broke on their way to the disk, and files that never were any."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from overnight.adapters.checkpoints.verify import verify
from overnight.core.events import Health

torch = pytest.importorskip("torch")

NAN = float("nan")


def saved(tmp_path: Path, value: Any, name: str = "model.pt", **options: Any) -> Path:
    """The path of `value` after torch.save."""
    path = tmp_path / name
    torch.save(value, path, **options)
    return path


def state() -> Any:
    """A few small tensors."""
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)).state_dict()


def flip(path: Path, offset: int) -> None:
    """Flip one bit in a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_found_by_its_checksum(tmp_path: Path) -> None:
    """torch.load would take the wrong number without a word."""
    path = saved(tmp_path, {"w": torch.ones(1000)})
    flip(path, path.read_bytes().index(b"\x00\x00\x80\x3f" * 100) + 401)
    assert (torch.load(path)["w"] != 1.0).any()
    report = verify(path)
    assert report.health is Health.CORRUPT
    assert report.reason.startswith("model.pt: tensor 'w' does not match its checksum")


def test_a_flipped_bit_in_the_structure_is_found(tmp_path: Path) -> None:
    """Also where the pickle would still parse."""
    path = saved(tmp_path, {"weight": torch.ones(10)})
    flip(path, path.read_bytes().index(b"weight") + 1)
    assert verify(path).health is Health.CORRUPT


def test_a_checksum_speaks_before_a_nan(tmp_path: Path) -> None:
    """A bit that flips into a NaN is a broken disk, not a broken training."""
    path = saved(tmp_path, {"w": torch.full((1000,), 3.4e38)})
    data = bytearray(path.read_bytes())
    at = data.index(bytes(torch.tensor([3.4e38]).view(torch.uint8).tolist()) * 10)
    data[at + 42] |= 0x80  # the last exponent bit of element 10
    path.write_bytes(data)
    assert torch.load(path)["w"].isnan().any()
    assert "checksum" in verify(path).reason


def test_a_file_without_checksums_is_not_damaged(tmp_path: Path) -> None:
    """set_crc32_options(False) writes zeros; they mean "none"."""
    torch.serialization.set_crc32_options(False)
    try:
        good = verify(saved(tmp_path, {"w": torch.ones(9)}))
        bad = verify(saved(tmp_path, {"w": torch.full((9,), NAN)}))
    finally:
        torch.serialization.set_crc32_options(True)
    assert good.health is Health.VERIFIED
    assert "without checksums" in good.reason
    assert bad.health is Health.CORRUPT


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("keep", [0.0, 0.0005, 0.3, 0.7, 0.999])
def test_a_cut_off_file_is_corrupt(tmp_path: Path, keep: float, legacy: bool) -> None:
    """Wherever the write ended, the empty file included."""
    path = saved(tmp_path, state(), _use_new_zipfile_serialization=not legacy)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    report = verify(path)
    assert report.health is Health.CORRUPT, report
    assert report.reason.startswith("model.pt: ")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7, 0.999])
def test_a_zeroed_tail_is_corrupt(tmp_path: Path, keep: float, legacy: bool) -> None:
    """Full length, but the last pages never reached the disk before the power went."""
    tensors = {name: torch.ones(3000) for name in "abcdefghij"}
    path = saved(tmp_path, tensors, _use_new_zipfile_serialization=not legacy)
    data = path.read_bytes()
    cut = int(len(data) * keep) // 4096 * 4096
    path.write_bytes(data[:cut] + bytes(len(data) - cut))
    assert verify(path).health is Health.CORRUPT


def test_a_missing_storage_is_corrupt(tmp_path: Path) -> None:
    """A zip can be whole and still lack the numbers of a tensor."""
    path = saved(tmp_path, {"a": torch.ones(3), "b": torch.ones(4)})
    thin = tmp_path / "thin.pt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(thin, "w") as target:
        for info in source.infolist():
            if not info.filename.endswith("data/1"):
                target.writestr(info.filename, source.read(info))
    assert verify(thin).reason == "thin.pt: the numbers of tensor 'b' are missing"


def test_a_storage_of_the_wrong_size_is_corrupt(tmp_path: Path) -> None:
    """Checksums of a file put together wrongly do match."""
    path = saved(tmp_path, {"a": torch.ones(3)})
    thin = tmp_path / "thin.pt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(thin, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            target.writestr(info.filename, content[:8] if "data/0" in info.filename else content)
    assert verify(thin).reason == "thin.pt: tensor 'a' has 8 bytes instead of 12"


def test_a_recompressed_archive_is_still_read(tmp_path: Path) -> None:
    """Somebody zipped it again, smaller; the numbers are the same."""
    bad = torch.zeros(5000)
    bad[4321] = NAN
    path = saved(tmp_path, {"w": bad})
    small = tmp_path / "small.pt"
    with (
        zipfile.ZipFile(path) as source,
        zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    assert verify(small).reason == "small.pt: NaN in tensor 'w' (element 4321)"


@pytest.mark.parametrize("cut", [0, 100], ids=["whole", "torn"])
def test_a_file_rewritten_meanwhile_is_not_judged(tmp_path: Path, cut: int) -> None:
    """torch.save to a fixed name rewrites the same file while we read it."""
    path = saved(tmp_path, {"w": torch.ones(100)})
    data = path.read_bytes()

    class Rewritten(type(path)):  # whose content changes as soon as it is opened
        def open(self, *arguments: Any, **options: Any) -> Any:
            path.write_bytes(data[: len(data) - cut])
            return super().open(*arguments, **options)

    path.write_bytes(data[:-50])
    report = verify(Rewritten(path))
    assert report.health is Health.UNVERIFIED
    assert report.reason == "model.pt: was written to while it was being checked"


@pytest.mark.parametrize(
    ("number", "health"), [(errno.EIO, Health.CORRUPT), (errno.ESTALE, Health.UNVERIFIED)]
)
def test_a_disk_that_cannot_read_is_damage(tmp_path: Path, number: int, health: Health) -> None:
    """Other failures to read say nothing about the checkpoint."""
    path = saved(tmp_path, {"w": torch.ones(100)})

    class Unreadable(type(path)):
        def open(self, *arguments: Any, **options: Any) -> Any:
            raise OSError(number, os.strerror(number))

    report = verify(Unreadable(path))
    assert report.health is health
    assert os.strerror(number) in report.reason


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Opening one without a writer would block for ever."""
    os.mkfifo(tmp_path / "model.pt")
    assert verify(tmp_path / "model.pt").reason == "model.pt: is no file"


@pytest.mark.parametrize(
    ("content", "health", "reason"),
    [
        (b"just a note\n", Health.UNVERIFIED, "plain text beginning with 'just a note'"),
        (b"\x1b[31mred\x1b[0m\nmore", Health.UNVERIFIED, "unknown format"),
        (bytes(9999), Health.CORRUPT, "nothing but zeros"),
        (b"", Health.CORRUPT, "empty"),
        (b"\x80\x04N.", Health.UNVERIFIED, "plain pickle"),
        (b"\x89HDF\r\n\x1a\n", Health.UNVERIFIED, "HDF5"),
        (b"PK", Health.CORRUPT, "cut off"),
        (bytes(range(1, 256)) * 40, Health.UNVERIFIED, "unknown format"),
    ],
    ids=["text", "ansi", "zeros", "empty", "pickle", "hdf5", "torn", "noise"],
)
def test_other_contents_get_a_sensible_answer(
    tmp_path: Path, content: bytes, health: Health, reason: str
) -> None:
    """A file named .pt can hold anything; the answer is never a crash."""
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    report = verify(path)
    assert report.health is health
    assert reason in report.reason
    assert report.reason.isprintable()


def test_random_damage_never_raises(tmp_path: Path) -> None:
    """Bytes overwritten anywhere: an answer each time, and the sound file stays sound."""
    path = saved(tmp_path, {"model": state(), "step": 3}, "m.pt")
    data = path.read_bytes()
    generator = torch.Generator().manual_seed(1)
    answers = []
    for _ in range(150):
        at = int(torch.randint(len(data) - 8, (1,), generator=generator))
        noise = bytes(torch.randint(256, (8,), generator=generator).tolist())
        path.write_bytes(data[:at] + noise + data[at + 8 :])
        answers.append(verify(path).health)
    assert set(answers) <= {Health.CORRUPT, Health.VERIFIED, Health.UNVERIFIED}
    assert answers.count(Health.CORRUPT) > 50
