"""Draws the pictures of the pages anew: `python docs/pictures/draw.py`. It needs shapekit[cli,plot].

Most are what `shapekit simulate` makes of the arguments here, which the pages show too. shaping.py draws
unshaped-and-shaped, and scale.py the others.
"""

import runpy
import shlex
from pathlib import Path

from shapekit.cli.simulate import simulate

PICTURES = {
    "delay-or-refuse": '--arrivals "burst:30 every 10s" --for 30s gcra:4/s+10 shaper:4/s',
    "burst": '--arrivals "burst:30 every 10s" --for 30s shaper:4/s shaper:4/s+15 gcra:4/s+15',
    "windows": '--arrivals "burst:50 every 9s" --for 60s fixed:50/10s gcra:50/10s+50 log:50/10s',
    "several-rates": '--arrivals "burst:300 every 2min" --for 2min shaper:10/s "shaper:10/s; 100/min"',
}
"""The arguments of each, by the name of its file."""
SHAPING = runpy.run_path(str(Path(__file__).parent / "shaping.py"))
SCALE = runpy.run_path(str(Path(__file__).parent / "scale.py"))


def draw(folder: Path) -> None:
    """Draw all of them into a folder."""
    for name, arguments in PICTURES.items():
        words = [*shlex.split(arguments), "--out", str(folder / f"{name}.svg")]
        simulate.main(words, standalone_mode=False)
    SHAPING["draw"](folder)
    SCALE["draw"](folder)


if __name__ == "__main__":
    draw(Path(__file__).parent)
