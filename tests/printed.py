"""What tests read of what is printed."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def shown(printable: RenderableType, width: int = 80) -> str:
    """What a terminal of `width` columns shows of a table, lines without the blanks at their ends."""
    console = Console(file=io.StringIO(), width=width)
    console.print(printable)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
