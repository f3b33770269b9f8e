"""Show a running sweep: on a terminal as a table that changes in place, elsewhere as a line for every start
and end; then one table."""

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headgates.models.progress import say
from headgates.workbench.sweeps.state import STATUSES, Record, SweepState, described, short

STYLES = {
    "running": "cyan",
    "failed": "red",
    "waiting": "dim",
    "done": "green",
    "skipped": "dim",
}  # most important first
WIDTH = 140  # of the table in a log file


class Show:
    """Shows the progress of a sweep. names: the parameters that differ from trial to trial; metric: name and
    title of what is shown."""

    def __init__(
        self,
        state: SweepState,
        names: Sequence[str],
        console: Console | None = None,
        *,
        metric: tuple[str, str] = ("bleu", "BLEU"),
    ):
        self.state, self.names, (self.metric, self.title_of_metric) = state, list(names), metric
        self.console = console or Console(width=None if sys.stdout.isatty() else WIDTH)
        self.running: Mapping[int, tuple[str, float]] = {}  # trial -> the last line of its log, its seconds
        self.live: Live | None = None

    def __enter__(self) -> "Show":
        if self.console.is_terminal:
            self.live = Live(
                get_renderable=self.table_that_fits,
                console=self.console,
                refresh_per_second=2,
                transient=True,
            )
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def started(self, record: Record) -> None:
        if self.live is None:
            self.say(f"{self.title(record)}: started ({self.state.folder / record.log})")

    def ended(self, record: Record) -> None:
        if record.status == "failed":  # on a terminal too: what is above the table stays
            self.say(
                f"{self.title(record)}: failed after {clock(record.seconds)}: {record.error} (log: {self.state.folder / record.log})"
            )
        elif self.live is None:
            took = f" in {clock(record.seconds)}" if record.seconds else ", finished before"
            self.say(
                f"{self.title(record)}: done{took}: {heads(record)} heads, {self.title_of_metric} {self.score(record)} ({record.run})"
            )

    def look(self, running: Mapping[int, tuple[str, float]]) -> None:
        self.running = running

    def say(self, text: str) -> None:
        """Print a line, above the table if one is shown."""
        say(text) if self.live is None else self.console.print(Text(text))

    def score(self, record: Record) -> str:
        """The metric with its interval; empty without a result."""
        if not record.result:
            return ""
        low, high = record.result[f"{self.metric}_ci95"]
        return f"{record.result[self.metric]:.2f} ({low:.1f} to {high:.1f})"

    def title(self, record: Record) -> str:
        return (
            f"trial {record.number} of {len(self.state.records)} ({described(record.parameters, self.names)})"
        )

    def table_that_fits(self) -> Table:
        """Return the table of the trials that fit the terminal: the running ones first, then the failed, the
        next and the latest."""
        order = list(STYLES)
        records = list(self.state.records.values())
        records.sort(key=lambda r: (order.index(r.status), r.number if r.status == "waiting" else -r.number))
        return self.table(sorted(records[: max(3, self.console.height - 7)], key=lambda r: r.number))

    def table(self, records: Sequence[Record]) -> Table:
        """Return a table with a row for each trial: parameters, state, run or last line of the log, heads,
        BLEU with its interval, time."""
        statuses = [record.status for record in self.state.records.values()]
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in STATUSES if status in statuses)
        table = Table(title=f"{self.state.folder}: {counts}", title_justify="left")
        for name in ("trial", *self.names):
            table.add_column(name, justify="right")
        table.add_column("state")
        table.add_column("run, or what it says", no_wrap=True, overflow="ellipsis", max_width=60)
        for name in ("heads", self.title_of_metric, "time"):
            table.add_column(name, justify="right", no_wrap=True)
        for record in records:
            line, seconds = (
                self.running.get(record.number, ("", 0.0)) if record.status == "running" else ("", 0.0)
            )
            about = (
                f"the same as trial {record.same_as}"
                if record.status == "skipped"
                else line or record.error or record.run or ""
            )
            cells = [str(record.number), *(short(record.parameters[name]) for name in self.names)]
            states = [
                Text(record.status, style=STYLES[record.status]),
                Text(about),
            ]  # a log line may hold what rich takes for markup
            table.add_row(*cells, *states, heads(record), self.score(record), clock(record.seconds + seconds))
        return table

    def summary(self) -> None:
        """Print the table of all trials."""
        self.console.print(self.table(list(self.state.records.values())))


def heads(record: Record) -> str:
    return f"{record.result['heads_open']}/{record.result['heads_total']}" if record.result else ""


def clock(seconds: float) -> str:
    """Return a duration as 0:07, 12:05 or 1:02:03; empty for a trial that never ran."""
    minutes, rest = divmod(round(seconds), 60)
    text = f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
    return text if seconds else ""
