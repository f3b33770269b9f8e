"""What a sweep shows: a table that changes in place on a terminal, a line for every start and end elsewhere, one table at the end."""

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeps.state import Record, State, described, short

STYLES = {"waiting": "dim", "running": "cyan", "done": "green", "failed": "red", "skipped": "dim"}
WIDTH = 140  # of the table in a log file


class Show:
    """Tells how a sweep goes. names: the parameters that differ from trial to trial."""

    def __init__(self, state: State, names: Sequence[str], console: Console | None = None):
        self.state, self.names = state, list(names)
        self.console = console or Console(width=None if sys.stdout.isatty() else WIDTH)
        self.lines: dict[int, str] = {}  # what each running trial said last
        self.seconds: dict[int, float] = {}
        self.live: Live | None = None

    def __enter__(self) -> "Show":
        if self.console.is_terminal:
            self.live = Live(get_renderable=self.table_that_fits, console=self.console, refresh_per_second=2, transient=True)
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def started(self, record: Record) -> None:
        if self.live is None:
            self.say(f"{self.title(record)}: started ({self.state.folder / record.log})")

    def ended(self, record: Record) -> None:
        if record.status == "failed":  # on a terminal too: what is above the table stays
            self.say(f"{self.title(record)}: failed after {clock(record.seconds)}: {record.error} (log: {self.state.folder / record.log})")
        elif self.live is None:
            run, took = record.run, f" in {clock(record.seconds)}" if record.seconds else ", finished before"
            self.say(f"{self.title(record)}: done{took}: {heads(record)} heads, BLEU {bleu(record)} ({run})")

    def look(self, lines: dict[int, str], seconds: dict[int, float]) -> None:
        self.lines, self.seconds = lines, seconds

    def say(self, text: str) -> None:
        """A line of its own, above the table where there is one."""
        if self.live is None:
            print(text, flush=True)
        else:
            self.console.print(Text(text))

    def title(self, record: Record) -> str:
        return f"trial {record.number} of {len(self.state.records)} ({described(record.parameters, self.names)})"

    def table_that_fits(self) -> Table:
        """On a terminal: the running trials before all, then failed ones, the next, and the latest that are done."""
        records = [self.state.records[number] for number in sorted(self.state.records)]
        rows = max(3, self.console.height - 7)
        if len(records) > rows:
            place = {"running": 0, "failed": 1, "waiting": 2, "done": 3, "skipped": 4}
            first = sorted(records, key=lambda r: (place[r.status], r.number if r.status == "waiting" else -r.number))
            records = sorted(first[:rows], key=lambda r: r.number)
        return self.table(records)

    def table(self, records: Sequence[Record] | None = None) -> Table:
        """All trials, or some: parameters, state, run or last line of the log, heads, BLEU with its interval, time."""
        everything = list(self.state.records.values())
        counts = {status: sum(record.status == status for record in everything) for status in STYLES}
        table = Table(title=f"{self.state.folder}: {', '.join(f'{n} {status}' for status, n in counts.items() if n)}", title_justify="left")
        table.add_column("trial", justify="right")
        for name in self.names:
            table.add_column(name, justify="right")
        table.add_column("state")
        table.add_column("run, or what it says", no_wrap=True, overflow="ellipsis", max_width=60)
        for name in ("heads", "BLEU", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        for record in records if records is not None else [self.state.records[number] for number in sorted(self.state.records)]:
            seconds = record.seconds + self.seconds.get(record.number, 0.0) * (record.status == "running")
            table.add_row(
                str(record.number),
                *(short(record.parameters[name]) for name in self.names),
                Text(record.status, style=STYLES[record.status]),
                Text(self.about(record)),  # a log line may hold what rich takes for markup
                heads(record),
                bleu(record),
                clock(seconds) if seconds else "",
            )
        return table

    def about(self, record: Record) -> str:
        if record.status == "skipped":
            return f"the same as trial {record.same_as}"
        return self.lines.get(record.number, "") if record.status == "running" else record.error or record.run or ""

    def summary(self) -> None:
        """The table of all trials, once."""
        self.console.print(self.table())


def heads(record: Record) -> str:
    return f"{record.result['heads_open']}/{record.result['heads_total']}" if record.result else ""


def bleu(record: Record) -> str:
    if not record.result:
        return ""
    low, high = record.result["bleu_ci95"]
    return f"{record.result['bleu']:.2f} ({low:.1f} to {high:.1f})"


def clock(seconds: float) -> str:
    """0:07, 12:05 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
