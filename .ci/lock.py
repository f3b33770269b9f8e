"""Write .ci/hashes.txt: every package of constraints.txt with the SHA-256 of its wheels for Linux x86-64, one
for each Python. Run it after constraints.txt has changed: `python .ci/lock.py`.

torch is left out: its wheel brings CUDA libraries, or is a CPU's from another index: no list of hashes fits
all machines; constraints.txt has its exact version, and is all that holds on other systems."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
SYSTEMS = (
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux2014",
    "manylinux_2_17",
    "manylinux_2_5",
    "manylinux1",
)
LEFT_OUT = ("torch",)
HEAD = "# Made by .ci/lock.py from constraints.txt; installed by .ci/run with --require-hashes --no-deps.\n"


def wheels(lines: list[str], python: str) -> dict[str, str]:
    """`name==version` -> SHA-256 of the wheel that pip takes for a Python."""
    with tempfile.TemporaryDirectory() as folder:
        listed, report = Path(folder, "all.txt"), Path(folder, "report.json")
        listed.write_text("\n".join(lines), encoding="utf-8")
        where = ["--only-binary=:all:", "--target", folder, "--python-version", python]
        where += [word for system in SYSTEMS for word in ("--platform", f"{system}_x86_64")]
        command = [sys.executable, "-m", "pip", "--isolated", "install", "--no-deps", "--dry-run", "--quiet"]
        command += ["--ignore-installed", "--report", str(report), *where, "-r", str(listed)]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        f"{each['metadata']['name']}=={each['metadata']['version']}": each["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for each in found
    }


def main() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in text if "==" in line and line.split("==")[0] not in LEFT_OUT]
    hashes: dict[str, set[str]] = {}
    for python in PYTHONS:
        for package, digest in wheels(lines, python).items():
            hashes.setdefault(package, set()).add(digest)
    rows = [
        " \\\n    ".join([package, *(f"--hash=sha256:{digest}" for digest in sorted(found))])
        for package, found in sorted(hashes.items(), key=lambda pair: pair[0].lower())
    ]
    (ROOT / ".ci/hashes.txt").write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
