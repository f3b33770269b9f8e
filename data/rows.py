"""Files of rows, each a mapping from names to values: .tsv, .jsonl, .tmx, .parquet and .arrow; those of text
also as .gz or .zst. Parallel text has both languages in a row:

    The dog sleeps.<TAB>Der Hund schläft.                      TSV: source, target, or as a first line says
    {"en": "The dog sleeps.", "de": "Der Hund schläft."}       or src and tgt, or en and de in "translation"
    <tu><tuv xml:lang="en"><seg>The dog sleeps.</seg></tuv> ...</tu>                                    TMX"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from headgates.configs.fields import shortened
from headgates.configs.own_file import check_unpacked
from headgates.data.text import DataError, line_error, reworded
from headgates.data.text_file import json_lines, opened, unpacked_name, whole_lines

Row = tuple[int, dict[str, Any]]  # its number or line in the file, from 1
TABLES = (".parquet", ".arrow")
ROW_ENDINGS = (".tsv", ".jsonl", ".tmx", *TABLES)
SIDE_NAMES = (("src", "tgt"), ("source", "target"))  # columns of source and target, in any language
COLUMN = "translation"  # of which each language is a field
MOST_ROWS = 2**20  # that any table may have; more need a byte each
AT_ONCE = 8  # rows of a table in memory: one long value in few bytes may stand in every row
XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
MARKUP = ("bpt", "ept", "it", "ph", "ut")  # elements of TMX whose text is another program's formatting


def row_ending(path: Path) -> str:
    """The ending in ROW_ENDINGS that a file of rows has, "" for any other file."""
    return next((each for each in ROW_ENDINGS if unpacked_name(path).endswith(each)), "")


def pairs_of_rows(files: Sequence[Path], src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of some files, each side on one line. Raises DataError, naming file and row, at one that
    lacks a language."""
    for path in files:
        for number, row in rows_of(path, src, tgt):
            languages = row[COLUMN] if isinstance(row.get(COLUMN), dict) else row
            sides = [
                next((languages[name] for name in names if name in languages), None)
                for names in zip((src, tgt), *SIDE_NAMES, strict=True)
            ]
            if not all(isinstance(side, str) for side in sides):
                raise DataError(
                    f"{path}, row {number}: expected a column {COLUMN} with {src} and {tgt}, or a column of "
                    f"text for each; got {shortened(row)}"
                )
            source, target = (" ".join(str(side).splitlines()).strip() for side in sides)
            yield source, target


def rows_of(path: Path, src: str, tgt: str) -> Iterator[Row]:
    """The rows of one file of parallel text. Raises DataError where it is broken."""
    ending = row_ending(path)
    if ending in TABLES:
        return table_rows(path, (COLUMN, src, tgt, *(name for names in SIDE_NAMES for name in names)))
    if ending == ".jsonl":
        return json_lines(path)
    if ending == ".tmx":  # a unit may lack a language
        return ((number, {src: "", tgt: ""} | row) for number, row in tmx_rows(path))
    return tab_rows(path, (src, tgt), headers=((src, tgt), *SIDE_NAMES))


def tab_rows(path: Path, columns: Sequence[str], *, headers: Sequence[Sequence[str]]) -> Iterator[Row]:
    """The rows of a .tsv file, empty lines left out. A first line that holds all names of one of `headers`
    says what the columns are called; else they are the first of `columns`. Raises DataError, naming the line,
    where one has more or fewer columns than the first, or the first has more than there are names."""
    names: Sequence[str] = ()
    for number, line in enumerate(whole_lines(path), start=1):
        cells = [cell.strip() for cell in line.split("\t")]
        if not any(cells):
            continue
        if not names and any(set(header) <= set(cells) for header in headers):
            names = cells
            continue
        rule = "as in the first line" if names else "or a first line that names the columns"
        names = names or columns[: len(cells)]
        if len(cells) != len(names):
            expected, came = " TAB ".join(names), f"{len(cells)} columns: {shortened(cells)}"
            raise line_error(path, number, f"expected {expected}, {rule}; got {came}")
        yield number, dict(zip(names, cells, strict=True))


def tmx_rows(path: Path) -> Iterator[Row]:
    """The translation units of a TMX file: en-US is both en-US and en. Raises DataError where it is torn."""
    number, above = 0, list[ElementTree.Element]()
    with reworded(f"{path} is no whole TMX", "copy it again, or export it as UTF-8"), opened(path) as file:
        for event, element in ElementTree.iterparse(file, ("start", "end")):
            if event == "start":
                above.append(element)
                continue
            above.pop()
            if element.tag == "tu" and above:
                number += 1
                yield number, unit_of(element)
                above[-1].remove(element)  # or the whole file would stay in memory


def unit_of(element: ElementTree.Element) -> dict[str, str]:
    """The text of a translation unit in each of its languages."""
    row: dict[str, str] = {}
    for variant in element.iter("tuv"):
        for each in list(variant.iter()):
            if each.tag in MARKUP:
                del each[:]
                each.text = None
        code = variant.get(XML_LANGUAGE) or variant.get("lang") or ""
        text = "".join("".join(segment.itertext()) for segment in variant.iter("seg"))
        row |= {code: text, code.partition("-")[0].lower(): text}
    return row


def table_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a .parquet file, or of an .arrow file, a stream as the package `datasets` writes it, with
    those of the columns that it has. Raises DataError where it is broken, or its rows are many times as large
    as the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    errors = OSError, ValueError, pa.ArrowException, OverflowError, MemoryError
    with reworded(f"{path} cannot be read", "copy or download it again", *errors):
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            check_parquet(path, file.metadata)
            batches = file.iter_batches(AT_ONCE, columns=columns)
        else:
            batches = pa.ipc.open_stream(pa.memory_map(str(path)))
        number, size = 0, 0
        for batch in batches:
            batch.validate(full=True)  # offsets and sizes: what follows trusts them
            batch = batch.select([name for name in columns if name in batch.schema.names])
            for start in range(0, batch.num_rows, AT_ONCE):
                for row in batch.slice(start, AT_ONCE).to_pylist():
                    number, size = number + 1, size + len(str(row))
                    check_unpacked(path, size, path.stat().st_size)
                    yield number, row


def check_parquet(path: Path, about: Any) -> None:
    """Raises ValueError where a .parquet file says to hold more bytes or rows than it can."""
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    sizes = [group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns)]
    there = path.stat().st_size
    check_unpacked(path, sum(max(size, 0) for size in sizes), there)
    if about.num_rows > max(MOST_ROWS, there):
        raise ValueError(f"it says {about.num_rows:,} rows in {there:,} bytes")
