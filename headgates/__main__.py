"""`headgates fit|prune|analyze|explore|translate|export|sweep`: the scripts of the checkout as one
command."""

import sys
from importlib import import_module

from headgates import __version__

COMMANDS = {
    "fit": "train a base model, make a smaller one of it, and compare",
    "prune": "make smaller models of a trained one, and compare them",
    "analyze": "say what the heads of a trained model do",
    "explore": "type a sentence, close heads, and see what a model does then",
    "translate": "translate text, lines in and lines out",
    "export": "write a model for another runtime or library, and time it",
    "sweep": "run fit with every combination of values",
}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        sys.argv = [f"headgates {name}", *sys.argv[2:]]
        try:
            command = import_module(f"headgates.commands.{name}")
        except SystemExit as stop:  # packages are missing, and with them what a command's options are made of
            if not {"--help", "-h", "--help-all"} & {*sys.argv}:
                raise
            print(
                f"usage: headgates {name} [--flag VALUE ...]\n\n{COMMANDS[name]}; to see its flags:\n{stop}"
            )
            return 0
        # --devices N starts more of these processes by the module of this one: Lightning's script launcher
        sys.modules["__main__"].__spec__ = command.__spec__
        return int(command.main() or 0)
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  headgates {command:<{width}}  {about}" for command, about in COMMANDS.items())
    usage = (
        f"usage: headgates COMMAND [options]\n\n{listed}\n\nheadgates COMMAND --help shows a command's "
        f"options"
    )
    if name in ("--help", "-h", "--version"):
        print(f"headgates {__version__}" if name == "--version" else usage)
        return 0
    print(f"headgates: error: no command {name!r}\n{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
