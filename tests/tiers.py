"""The tiers of the tests. By selection only: a test is the same in each of them.

core   what has no marker: `make test`. What a user's machine can get wrong, one of each kind, every stage once.
full   the rest: other variants, dtypes and sizes, more programs and broken kernels. `make test-all` runs both.
gpu    what needs a GPU: `make test-gpu` (in parts: builds, values, clocks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def core(parameters: Iterable[Any], kind: Callable[..., Any]) -> list[ParameterSet]:
    """Parameters for pytest.mark.parametrize: the first of each `kind(*values)` is in the core, the others are full.

    A parameter is a value, a tuple of values, or a pytest.param. Kind None: never in the core."""
    seen: set[Any] = {None}
    marked = []
    for parameter in parameters:
        if isinstance(parameter, ParameterSet):
            values, marks, name = parameter
        else:
            values, marks, name = parameter if isinstance(parameter, tuple) else (parameter,), (), None
        of = kind(*values)
        more = [pytest.mark.full] if of in seen else []
        seen.add(of)
        marked.append(pytest.param(*values, marks=[*marks, *more], id=name))
    return marked
