"""Which two pictures does README.md show, and how are they drawn again?

    python -m tools.readme_pictures

They are those of `simulator run`: of a shipped scenario, and of a training step small enough for every rank to be seen.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from PIL import Image

from tools.site.gallery_runs import ROOT, run_of

_STEP: Final = """\
# What does a rank do during a step with sharded parameters?
name: training_step
cluster: {topology: leaf_spine_100g, world_size: 4}
training: {model: gpt2_medium, seq_len: 1024, micro_batch_size: 4, sharding: zero3}
plots: [timeline]
"""
# Few colours: the pictures are stored with the code.
_COLOURS: Final = 64


def main() -> None:
    """Draw both into docs/images."""
    with tempfile.TemporaryDirectory() as folder:
        step = Path(folder) / "training_step.yaml"
        step.write_text(_STEP, encoding="utf-8")
        ring = ROOT / "scenarios" / "ring_vs_parameter_server.yaml"
        for scenario, plot in ((ring, "time_against_workers"), (step, "timeline")):
            drawn = {path.stem: path for path in run_of(scenario, Path(folder) / "runs").pictures}
            _store(drawn[plot], ROOT / "docs" / "images" / f"{scenario.stem}.png")


def _store(picture: Path, target: Path) -> None:
    with Image.open(picture) as image:
        image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
