"""Tables that fit a terminal: names are shortened in their middle, never broken over lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_GAP = 2


@dataclass(frozen=True)
class Fit:
    """What may become narrower where a table is too wide.

    Args:
        least: column → the fewest characters it keeps, in the order in which they give way.
        wraps: columns whose parts, at commas, go to further lines instead of being shortened.
        heads: columns that keep their start, as the ids of releases do.
        drop: columns that are left out where even that is too wide, in this order.
    """

    least: Mapping[str, int]
    wraps: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()
    drop: Sequence[str] = field(default=())


def middle(text: str, width: int) -> str:
    """At most ``width`` characters: numbers at a name's end tell it from its neighbours."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def squeeze(widths: Mapping[str, int], room: int, least: Mapping[str, int]) -> dict[str, int]:
    """Widths that add up to ``room`` where `least` lets them."""
    found = dict(widths)
    for name, floor in least.items():
        if name in found:
            excess = max(0, sum(found.values()) - room)
            found[name] = max(min(floor, found[name]), found[name] - excess)
    return found


def fitted_table(rows: Sequence[Mapping[str, Text]], names: Sequence[str], fit: Fit,
                 width: int) -> Table:  # fmt: skip
    """A table of the rows' cells by column.

    Args:
        width: of the terminal, in characters.
    """
    from rich import box
    from rich.table import Table

    kept, widths = _columns(rows, names, fit, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in kept:
        wraps = name in fit.wraps
        table.add_column(name, no_wrap=not wraps, width=widths[name], overflow="ellipsis")
    for row in rows:
        table.add_row(*(_cell(row, name, widths[name], fit) for name in kept))
    return table


def _columns(
    rows: Sequence[Mapping[str, Text]], names: Sequence[str], fit: Fit, width: int
) -> tuple[list[str], dict[str, int]]:
    kept, droppable = list(names), list(fit.drop)
    while True:
        room = width - _GAP * (len(kept) - 1)
        natural = {
            name: max(len(name), *(row[name].cell_len for row in rows if name in row), 0)
            for name in kept
        }
        widths = squeeze(natural, room, fit.least)
        if sum(widths.values()) <= room or not droppable:
            return kept, widths
        kept = [name for name in kept if name != droppable[0]]
        droppable.pop(0)


def _cell(row: Mapping[str, Text], name: str, width: int, fit: Fit) -> Text:
    from rich.text import Text

    cell = row.get(name, Text())
    if name in fit.heads or cell.cell_len <= width:
        return cell
    if name in fit.wraps:
        return Text(cell.plain.replace(", ", ",\n"), style=cell.style)
    return Text(middle(cell.plain, width), style=cell.style)
