"""The report page of analyses done before:   python -m headgates.report RUN/analysis/base/cards.json PAGE"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from headgates.report.page import write_page


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m headgates.report", description="Write the report page of a cards.json of analyze.py."
    )
    parser.add_argument(
        "cards",
        type=Path,
        metavar="CARDS",
        help="the cards.json that analyze.py left in RUN/analysis/SYSTEM/",
    )
    parser.add_argument("page", type=Path, metavar="PAGE", help="the HTML file to write")
    arguments = parser.parse_args(argv)
    try:
        write_page(json.loads(arguments.cards.read_text(encoding="utf-8")), arguments.page)
    except FileNotFoundError:
        sys.exit(
            f"{arguments.cards} does not exist; `python analyze.py RUN` makes RUN/analysis/SYSTEM/cards.json"
        )
    except ValueError as error:
        sys.exit(f"{arguments.cards}: {error}")
    print(arguments.page)


if __name__ == "__main__":
    main()
