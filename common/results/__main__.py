"""Write the tables and plots of README.md and docs/ anew from the recorded runs in docs/results/.

python -m common.results            write what is out of date
python -m common.results --check    only say what is; exit status 1 if anything
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from common.results import documents, runs
from common.results.markdown import usage
from cudaemu.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m common.results",
        description=(__doc__ or "").splitlines()[0],
        epilog=f"tables, in documents as <!-- results:NAME ... -->:\n{usage()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something is out of date")
    options = parser.parse_args(arguments)
    try:
        stale = documents.regenerate(options.check)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in stale:
        print(f"{'out of date' if options.check else 'written'}: {path.relative_to(runs.ROOT)}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
