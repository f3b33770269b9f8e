"""The settings of a SOURCE: the text that a model of another library is used with, and how it is read."""

from dataclasses import dataclass

from headgates.configs.fields import setting


@dataclass(frozen=True)
class ForeignOptions:
    """How a model of another library is read, as the end of a SOURCE says, such as
    `hf:NAME,src=eng_Latn,tgt=deu_Latn`."""

    src_lang: str | None = None  # src=: the language that it reads, as the model calls it
    tgt_lang: str | None = None  # tgt=: that it writes
    prefix: str | None = None  # prefix=: text before every source line, as T5 learned its tasks
    dictionaries: str | None = None  # dict=: fairseq's folder of dict.SRC.txt, dict.TGT.txt and BPE codes


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The text of a model of another library, of which a run folder is made; None: a run has its own."""

    data: str | None = setting(
        None, "Text: toy, multi30k, hf:NAME, or a folder. It has {train,valid,test}.{src,tgt}, or .tsv."
    )
    src: str | None = setting(None, "Source language: the files' suffix.")
    tgt: str | None = setting(None, "Target language.")
    data_dir: str | None = setting(None, "Folder with local copies of named corpora.")
    runs: str = setting("runs", "Folder of all runs.")
