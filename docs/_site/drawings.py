"""Drawings are text: `docs/drawings/NAME.txt` says which boxes stand where and what leads to what, this draws the SVG.

    size COLUMNS ROWS
    frame COLUMN ROW COLUMNS ROWS | label
    box NAME COLUMN ROW [WIDTH] [strong|faint] | title | line | ...
    arrow NAME NAME [dashed] | label
    text COLUMN ROW | words

Places are those of a grid and may be fractions. `python docs/_site/drawings.py` writes every SVG again; a test compares
them. On a page an SVG takes the colours of the system; on the site it takes the page's: `inline.py` puts it there.
"""

from html import escape
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parents[1] / "drawings"
COLUMN, ROW, MARGIN = 210, 100, 14
BOX_WIDTH, BOX_HEIGHT, LINE = 150, 62, 18

STYLE: Final = """
.drawing { --ink: #1f2328; --soft: #57606a; --line: #8c959f; --fill: #f6f8fa; --strong: #0b63b6; --paper: #ffffff;
  font: 14px system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { .drawing { --ink: #e6edf3; --soft: #9da7b3; --line: #6e7681; --fill: #21262d;
  --strong: #58a6ff; --paper: #0d1117; } }
.drawing text { fill: var(--ink); text-anchor: middle; }
.drawing .title { font-weight: 600; }
.drawing .soft, .drawing .label { fill: var(--soft); font-size: 13px; }
.drawing .label { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; }
.drawing rect { fill: var(--fill); stroke: var(--line); stroke-width: 1.2; }
.drawing rect.strong { stroke: var(--strong); stroke-width: 2.2; }
.drawing rect.faint { stroke-dasharray: 4 4; }
.drawing rect.frame { fill: none; stroke-dasharray: 2 5; }
.drawing path.arrow { stroke: var(--soft); stroke-width: 1.5; fill: none; }
.drawing path.dashed { stroke-dasharray: 5 4; }
.drawing .head { fill: var(--soft); }
"""


class Box(NamedTuple):
    """A rectangle by its middle and half of its sides, in pixels."""

    x: float
    y: float
    half_width: float
    half_height: float

    def edge(self, towards: "Box", gap: float) -> tuple[float, float]:
        """Where the straight line from the middle to that of another leaves this one, and `gap` pixels on."""
        across, down = towards.x - self.x, towards.y - self.y
        reach = min(
            (self.half_width + gap) / abs(across) if across else float("inf"),
            (self.half_height + gap) / abs(down) if down else float("inf"),
        )
        return self.x + across * reach, self.y + down * reach


def svg_of(text: str, title: str) -> str:
    """The drawing. Raises `KeyError` for an arrow to a box that is not there.

    Raises `ValueError` for an unknown line, and for a box that leaves the drawing.
    """
    boxes: dict[str, Box] = {}
    shapes: list[str] = []
    arrows: list[str] = []
    width = height = 0.0
    for line in text.splitlines():
        head, *words = (part.strip() for part in line.split("|"))
        kind, *values = head.split() or ["#"]
        if kind == "size":
            width, height = float(values[0]) * COLUMN + 2 * MARGIN, float(values[1]) * ROW + 2 * MARGIN
        elif kind == "frame":
            shapes += _frame(*map(float, values), words[0])
        elif kind == "box":
            boxes[values[0]], drawn = _box(values[1:], words)
            shapes += drawn
        elif kind == "arrow":
            arrows += _arrow(boxes[values[0]], boxes[values[1]], "dashed" in values, words)
        elif kind == "text":
            x, y = _place(*map(float, values))
            shapes.append(_words(x, y, "soft", words[0]))
        elif not kind.startswith("#"):
            raise ValueError(line)
    for name, box in boxes.items():
        if not (
            box.half_width <= box.x <= width - box.half_width and box.half_height <= box.y <= height - box.half_height
        ):
            raise ValueError(f"{name} leaves the drawing: say a larger size")
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" role="img" viewBox="0 0 {width:g} {height:g}"'
    marker = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    tip = '<path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
    body = "\n".join([*shapes, *arrows])
    return (
        f'{opening} width="{width:g}">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f"<defs>{marker}{tip}</defs>\n{body}\n</svg>\n"
    )


def _place(column: float, row: float) -> tuple[float, float]:
    return MARGIN + (column + 0.5) * COLUMN, MARGIN + (row + 0.5) * ROW


def _words(x: float, y: float, kind: str, words: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def _frame(column: float, row: float, columns: float, rows: float, label: str) -> list[str]:
    x, y = MARGIN + column * COLUMN + 4, MARGIN + row * ROW + 2
    size = f'width="{columns * COLUMN - 8:g}" height="{rows * ROW - 4:g}"'
    return [
        f'<rect class="frame" x="{x:g}" y="{y:g}" {size} rx="10"/>',
        _words(x + columns * COLUMN / 2 - 4, y + 15, "soft", label),
    ]


def _box(values: list[str], words: list[str]) -> tuple[Box, list[str]]:
    column, row, *rest = values
    x, y = _place(float(column), float(row))
    kind = next((each for each in rest if each in {"strong", "faint"}), "plain")
    wide = next((float(each) for each in rest if each not in {"strong", "faint"}), 1.0)
    high = max(BOX_HEIGHT, LINE * len(words) + 18)
    box = Box(x, y, (BOX_WIDTH + (wide - 1) * COLUMN) / 2, high / 2)
    corner = f'x="{x - box.half_width:g}" y="{y - box.half_height:g}"'
    drawn = [f'<rect class="{kind}" {corner} width="{2 * box.half_width:g}" height="{high:g}" rx="7"/>']
    for number, each in enumerate(words):
        at = y + (number - (len(words) - 1) / 2) * LINE + 4.5
        drawn.append(_words(x, at, "soft" if number else "title", each))
    return box, drawn


def _arrow(source: Box, target: Box, dashed: bool, words: list[str]) -> list[str]:
    (x0, y0), (x1, y1) = source.edge(target, 2), target.edge(source, 3)
    kind = "arrow dashed" if dashed else "arrow"
    drawn = [f'<path class="{kind}" marker-end="url(#head)" d="M{x0:.1f} {y0:.1f} L{x1:.1f} {y1:.1f}"/>']
    middle_x, middle_y = (x0 + x1) / 2, (y0 + y1) / 2
    up = 7 if abs(y1 - y0) < 1 else -4
    return drawn + [
        _words(round(middle_x, 1), round(middle_y - up + number * 14, 1), "label", each)
        for number, each in enumerate(words)
    ]


def title_of(text: str) -> str:
    """What the drawing shows: the comment in its first line."""
    return text.splitlines()[0].lstrip("# ")


def drawn() -> dict[Path, str]:
    """Each SVG by its path."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.txt"))}
    return {path.with_suffix(".svg"): svg_of(text, title_of(text)) for path, text in texts.items()}


if __name__ == "__main__":
    for svg, text in drawn().items():
        svg.write_text(text, encoding="utf-8")
