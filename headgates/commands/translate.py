"""Translate text with any run: lines in, as many lines out, in the same order, for a stream of any length.

    python translate.py runs/toy-en-de-l0-0.01-e3-s1 < in.txt > out.txt

Exit code: 0; 1 after an error in the text, a file or the model; 2 for a wrong flag; 130 after Ctrl-C; 141
where the reader of the output closed it early (`| head`). On standard output the lines before an error or an
interrupt are whole and in place; an --output file is not made. With a terminal as input each line is
translated as it comes.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Literal

from headgates.commands import start
from headgates.configs.fields import check_ranges, setting
from headgates.configs.translating import Translating
from headgates.models.line_translator import LineTranslator
from headgates.models.progress import Progress, Report
from headgates.models.stream import as_text, output_file, read_chunks, split_lines, translated, windows


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(Translating):
    """Translate text with any run: lines in, lines out, in order.

    echo "The old dog sleeps." | python translate.py runs/toy-en-de-l0-0.01-e3-s1
    python translate.py runs/toy-en-de-l0-0.01-e3-s1 --input lines.en --output lines.de --beam 5
    """

    input: str | None = setting(None, "File to translate. Default standard input.")
    output: str | None = setting(
        None, "File to write, whole at the end or not at all. Default standard output."
    )
    batch_tokens: int = setting(
        0, "Source pieces, padding counted, times beam, at once; 0: the run's own.", at_least=0
    )
    window: int = setting(
        1000,
        "Lines read ahead at most, to be sorted by length; the first windows are smaller.",
        at_least=1,
        rare=True,
    )
    max_length: int = setting(
        1000, "Pieces that a line may have; never more than the model has positions for.", at_least=1
    )
    too_long: Literal["stop", "empty"] = setting(
        "stop", "A line of more pieces stops with an error, or its translation is left empty."
    )
    not_utf8: Literal["stop", "empty"] = setting(
        "stop", "A line that is not UTF-8 stops with an error, or its translation is left empty.", more=True
    )
    quiet: bool = setting(False, "Write no progress on standard error.")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.beam:
            self.check_beam(self.beam)

    def check_beam(self, beam: int) -> None:
        """Raises ValueError where more translations of a line are wanted than a beam of this width finds."""
        if self.n_best > beam:
            raise ValueError(
                f"--n-best: expected at most the beam width, {beam}, got {self.n_best}; give --beam "
                f"{self.n_best} too"
            )


def main() -> int:
    code = start(
        "translate",
        TranslateOptions,
        checked,
        interrupted="the lines written so far are whole; an --output file is not made",
    )
    if code:
        drop_output()
    return code


def checked(options: TranslateOptions, given: Mapping[str, Any]) -> int:
    """`translate`, with what to do where memory is too small. Returns the exit code."""
    try:
        translate(options)
    except BrokenPipeError:  # the reader of our output has had enough: no word, as from any program in a pipe
        return 141  # what a shell reports of a program ended by SIGPIPE
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        why = str(error).splitlines()[0]
        raise ValueError(f"{why}; lower --batch-tokens or --max-length") from error
    return 0


def translate(options: TranslateOptions) -> None:
    """Read, translate and write until the input ends. Raises ValueError and OSError with one line for the
    user."""
    from headgates.records.named_paths import check_run

    with ExitStack() as stack:
        # both ends are tried before a model is loaded
        fd = input_descriptor(options.input, stack)
        out = stack.enter_context(output_file(options.output)) if options.output else standard_output()
        name = options.input or "standard input"
        check_run(options.source, exported=True)
        by_hand = os.isatty(fd)
        translator, longest, limit = open_model(options, make=not by_hand)
        beam = options.beam or translator.search.beam
        options.check_beam(beam)
        lines_seen = options.output is None and sys.stdout is not None and sys.stdout.isatty()
        progress = stack.enter_context(Progress(quiet=options.quiet or by_hand, lines_seen=lines_seen))
        if by_hand and not options.quiet:
            progress.say("type a line for its translation; Ctrl-D ends")
        lines = split_lines(
            read_chunks(fd, wait=0.0 if by_hand else 0.1),
            name=name,
            left_empty=progress.say if options.not_utf8 == "empty" else None,
        )
        texts = windows(lines, most=options.window)
        number = 0
        for found in translated(
            translator,
            texts,
            longest=longest,
            limit=limit,
            beam=beam,
            length_penalty=options.length_penalty,
            left_empty=progress.say if options.too_long == "empty" else None,
            tell=None if options.quiet else progress.say,
            name=name,
        ):
            for best in found:
                number += 1
                out.write(as_text(best, number, n_best=options.n_best, scores=options.scores).encode())
            out.flush()
            progress.add(len(found))
        progress.finish()


def open_model(options: TranslateOptions, *, make: bool) -> tuple[LineTranslator, int, str]:
    """Return the model of SOURCE, the most pieces that a line may have, and the words for this limit in
    errors. make: whether it may be exported for the fastest runtime, which takes a while."""
    from headgates.bridges.exported import is_exported, open_exported, read_export
    from headgates.records.runtime import kept_runtime

    def tell(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    translator: LineTranslator | None
    if is_exported(options.source):
        for flag, value in {"--system": options.system, "--device": options.device}.items():
            if value is not None:
                raise ValueError(
                    f"{flag} {value}: {options.source} is an exported model: one system, made for one "
                    f"device; leave it out"
                )
        form = read_export(options.source)["format"]
        fits = ("ct2", "int8") if form == "ct2" else ("torch",) if form in ("hf", "fairseq", "marian") else ()
        if options.runtime not in ("auto", *fits):
            raise ValueError(
                f"--runtime {options.runtime}: {options.source} is exported to {form}, which runs as it is; "
                f"leave it out"
            )
        form_options: dict[str, Any] = {"compute_type": "int8"} if options.runtime == "int8" else {}
        translator = open_exported(options.source, threads=options.threads, **form_options)
    else:
        translator = kept_runtime(options, tell) or open_in_torch(options, tell, make=make)
    positions = translator.max_positions
    if options.batch_tokens:
        translator.search = replace(translator.search, batch_tokens=options.batch_tokens)
    if positions is not None and positions <= options.max_length:  # the end of sentence takes a position
        return translator, positions - 1, f"the {positions - 1} that the model has positions for"
    return translator, options.max_length, f"--max-length {options.max_length}"


def open_in_torch(options: TranslateOptions, tell: Report, *, make: bool) -> LineTranslator:
    """What translates for a run, or a model of another library."""
    # here, because torch takes seconds to import, and what is exported needs none of it
    import torch

    from headgates.records.runtime import open_runtime
    from headgates.records.source import open_source

    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device is not None:
        try:
            torch.empty(1, device=options.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"--device {options.device}: {str(error).strip().splitlines()[0]}; take cpu, or leave it out"
            ) from None
    source = open_source(options.source, options.system, device=options.device)
    return open_runtime(source, options, tell, make=make)


def input_descriptor(path: str | None, stack: ExitStack) -> int:
    """Return the file descriptor of the input file or of standard input. Raises ValueError if it cannot be
    read."""
    if path is None:
        if sys.stdin is None:
            raise ValueError("standard input is closed; give --input FILE")
        return sys.stdin.fileno()
    try:
        return stack.enter_context(open(path, "rb", buffering=0)).fileno()
    except OSError as error:
        raise ValueError(
            f"--input {path}: {error.strerror}; expected a text file, one sentence a line"
        ) from error


def standard_output() -> BinaryIO:
    """Return the binary standard output. Raises ValueError if it is closed."""
    if sys.stdout is None:
        raise ValueError("standard output is closed; give --output FILE")
    return sys.stdout.buffer


def drop_output() -> None:
    """Flush standard output; if that fails, point it at the null device, or Python would fail again when it
    exits."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
