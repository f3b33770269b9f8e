"""A reader of models that lie in a plain folder, as another library's would be."""

from pathlib import Path

from models.checkpoint import load_model
from models.foreign import ForeignModel
from models.translator import Translator, load_vocabs


def read(place: str) -> ForeignModel:
    folder = Path(place)
    vocabularies = {path.name: path for path in sorted(folder.glob("vocab*.model"))}
    translator = Translator(load_model(folder / "best.pt"), *load_vocabs(folder))
    return ForeignModel(folder.name, translator, [folder / "best.pt", *vocabularies.values()], vocabularies, {"src": "xx", "tgt": "yy"})
