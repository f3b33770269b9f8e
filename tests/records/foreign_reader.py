"""A reader of models that lie in a plain folder, as another library's would be."""

from pathlib import Path

from headgates.bridges.foreign import Converted, ForeignModel
from headgates.configs.source import ForeignOptions
from headgates.data.vocab import load_vocabs
from headgates.models.checkpoint import load_model
from headgates.models.translator import Translator


def read(place: str, options: ForeignOptions) -> ForeignModel:
    folder = Path(place)
    vocabularies = {path.name: path for path in sorted(folder.glob("vocab*.model"))}

    def convert() -> Converted:
        translator = Translator(load_model(folder / "best.pt"), *load_vocabs(folder))
        return Converted(translator, vocabularies, settings={"src": "xx", "tgt": "yy"})

    return ForeignModel(folder.name, [folder / "best.pt", *vocabularies.values()], convert)
