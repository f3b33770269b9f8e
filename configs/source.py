"""The settings of a SOURCE: the text that a model of another library is used with, and how it is read."""

from dataclasses import dataclass

from headgates.configs.fields import setting


@dataclass(frozen=True)
class ForeignOptions:
    """How a model of another library is read, as the end of a SOURCE says, such as
    `hf:NAME,src=eng_Latn,tgt=deu_Latn`."""

    src_lang: str | None = None  # src=: the language that it reads, as the model calls it
    tgt_lang: str | None = None  # tgt=: that it writes
    dictionaries: str | None = None  # dict=: fairseq's folder of dict.SRC.txt, dict.TGT.txt and BPE codes


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The text of a model of another library: one run folder is made for each."""

    data: str | None = setting(
        None, "Text for a model of another library: a named corpus or a folder; runs have their own."
    )
    src: str | None = setting(None, "Source language of --data: the files' suffix.")
    tgt: str | None = setting(None, "Target language of --data.")
    data_dir: str | None = setting(None, "Folder with local copies of named corpora. Default the run's own.")
    runs: str = setting("runs", "Folder of the run that a model of another library becomes.")
