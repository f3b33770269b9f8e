"""headgates: which parts of a Transformer does a model need, how few are enough, and what do the parts that
stay do?

Every room is imported under this one name, `from headgates.gates import attach`, in a checkout and after `pip
install` alike: the rooms lie beside this folder, and this folder holds a link to each of them.
"""

__version__ = "0.2.0"
