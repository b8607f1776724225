"""Two checkpoints are compared by names and shapes, where both are on this machine."""

import json
from pathlib import Path

import pytest

from schemas.errors import Invalid
from services.worker.engines.remote.checkpoint import check_checkpoint


def _write(folder: Path, **shapes: list[int]) -> str:
    """A checkpoint of one file for each weight, without its data."""
    folder.mkdir()
    for name, shape in shapes.items():
        weight = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
        header = json.dumps({"__metadata__": {"format": "pt"}, f"{name}.weight": weight}).encode()
        data = len(header).to_bytes(8, "little") + header
        (folder / f"{name}.safetensors").write_bytes(data)
    return str(folder)


def test_checkpoint_with_the_same_weights_is_accepted(tmp_path: Path) -> None:
    old = _write(tmp_path / "old", a=[2, 3], lm_head=[4])
    check_checkpoint(_write(tmp_path / "same", a=[2, 3], lm_head=[4]), old)
    check_checkpoint(_write(tmp_path / "tied", a=[2, 3]), old)
    check_checkpoint(_write(tmp_path / "more", a=[2, 3], lm_head=[4], more=[1]), old)
    check_checkpoint(_write(tmp_path / "other", b=[1]), "")
    check_checkpoint(old, "org/model")
    check_checkpoint("/of another machine/model", old)


def test_checkpoint_with_other_weights_is_refused(tmp_path: Path) -> None:
    old = _write(tmp_path / "old", a=[2, 3], b=[1])
    refused = {
        "lacks b.weight": _write(tmp_path / "less", a=[2, 3]),
        r"a.weight has the shape \[3, 2\], not \[2, 3\]": _write(tmp_path / "o", a=[3, 2], b=[1]),
        "has no weights": _write(tmp_path / "empty"),
        "cannot be read": _write(tmp_path / "broken", a=[2, 3]),
    }
    for why, source in refused.items():
        for file in Path(source).glob("*") if "read" in why else ():
            file.write_bytes(file.read_bytes()[:20])
        with pytest.raises(Invalid, match=why):
            check_checkpoint(source, old)
