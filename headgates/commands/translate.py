"""Translate text with any run: lines in, as many lines out, in the same order, for a stream of any length.

    python translate.py runs/toy-en-de-l0-0.01-s1 < in.txt > out.txt

Exit code: 0; 1 after an error in the text, a file or the model; 2 for a wrong flag; 130 after Ctrl-C; 141
where the reader of the output closed it early (`| head`). On standard output the lines before an error or an
interrupt are whole and in place; an --output file is not made. With a terminal as input each line is
translated as it comes.
"""

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from headgates.commands import start
from headgates.models.line_translator import LineTranslator
from headgates.models.progress import Progress, Report
from headgates.models.stream import as_text, output_file, read_chunks, split_lines, translated, windows

if TYPE_CHECKING:
    from headgates.configs.translate import TranslateConfig


def main() -> int:
    code = start(
        "translate",
        "headgates.configs.translate:TranslateConfig",
        checked,
        about=__doc__,
        interrupted="the lines written so far are whole; an --output file is not made",
    )
    if code:
        drop_output()
    return code


def checked(config: "TranslateConfig") -> int:
    """`translate`, with what to do where memory is too small. Returns the exit code."""
    try:
        translate(config)
    except BrokenPipeError:  # the reader of our output has had enough: no word, as from any program in a pipe
        return 141  # what a shell reports of a program ended by SIGPIPE
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        why = str(error).splitlines()[0]
        raise ValueError(f"{why}; lower --batch-tokens or --max-length") from error
    return 0


def translate(config: "TranslateConfig") -> None:
    """Read, translate and write until the input ends. Raises ValueError and OSError with one line for the
    user."""
    from headgates.records.named_paths import check_run

    with ExitStack() as stack:
        # both ends are tried before a model is loaded
        fd = input_descriptor(config.input, stack)
        out = stack.enter_context(output_file(config.output)) if config.output else standard_output()
        name = config.input or "standard input"
        check_run(config.source, exported=True)
        by_hand = os.isatty(fd)
        translator, longest, limit = load(config, make=not by_hand)
        beam = config.beam or translator.search.beam
        config.check_beam(beam)
        lines_seen = config.output is None and sys.stdout is not None and sys.stdout.isatty()
        progress = stack.enter_context(Progress(quiet=config.quiet or by_hand, lines_seen=lines_seen))
        if by_hand and not config.quiet:
            progress.say("type a line for its translation; Ctrl-D ends")
        texts = windows(
            split_lines(read_chunks(fd, wait=0.0 if by_hand else 0.1), name=name), most=config.window
        )
        number = 0
        for found in translated(
            translator,
            texts,
            longest=longest,
            limit=limit,
            beam=beam,
            length_penalty=config.length_penalty,
            left_empty=progress.say if config.too_long == "empty" else None,
            tell=None if config.quiet else progress.say,
            name=name,
        ):
            for best in found:
                number += 1
                out.write(as_text(best, number, n_best=config.n_best, scores=config.scores).encode())
            out.flush()
            progress.add(len(found))
        progress.finish()


def load(config: "TranslateConfig", *, make: bool) -> tuple[LineTranslator, int, str]:
    """Return the model of SOURCE, the most pieces that a line may have, and the words for this limit in
    errors. make: whether it may be exported for the fastest runtime, which takes a while."""
    from headgates.bridges.exported import is_exported, open_exported, read_about
    from headgates.records.runtime import kept_runtime

    def tell(text: str) -> None:
        if not config.quiet:
            print(text, file=sys.stderr, flush=True)

    translator: LineTranslator | None
    if is_exported(config.source):
        for flag, value in {"--system": config.system, "--device": config.device}.items():
            if value is not None:
                raise ValueError(
                    f"{flag} {value}: {config.source} is an exported model: one system, made for one "
                    f"device; leave it out"
                )
        form = read_about(config.source)["format"]
        if config.runtime not in ("auto", "torch") and form != "ct2":
            raise ValueError(
                f"--runtime {config.runtime}: {config.source} is exported to {form}, which runs as it is; "
                f"leave it out"
            )
        options: dict[str, Any] = {"compute_type": "int8"} if config.runtime == "int8" else {}
        translator = open_exported(config.source, threads=config.threads, **options)
    else:
        translator = kept_runtime(config, tell) or open_run(config, tell, make=make)
    positions = translator.max_positions
    if config.batch_tokens:
        translator.search = replace(translator.search, batch_tokens=config.batch_tokens)
    if positions is not None and positions <= config.max_length:  # the end of sentence takes a position
        return translator, positions - 1, f"the {positions - 1} that the model has positions for"
    return translator, config.max_length, f"--max-length {config.max_length}"


def open_run(config: "TranslateConfig", tell: Report, *, make: bool) -> LineTranslator:
    """What translates for a run, or a model of another library."""
    # here, because torch takes seconds to import, and what is exported needs none of it
    import torch

    from headgates.records.runtime import open_runtime
    from headgates.records.source import open_source

    if config.threads:
        torch.set_num_threads(config.threads)
    if config.device is not None:
        try:
            torch.empty(1, device=config.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"--device {config.device}: {str(error).strip().splitlines()[0]}; take cpu, or leave it out"
            ) from None
    source = open_source(config.source, config.system, device=config.device)
    return open_runtime(source, config, tell, make=make)


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


if __name__ == "__main__":
    sys.exit(main())
