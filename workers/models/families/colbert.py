"""ColBERT: BERT with a projection of each token, for late interaction (Khattab and Zaharia)."""

from dataclasses import replace

from .bert import BERT

COLBERT = replace(BERT, name="colbert", architectures=("HF_ColBERT",), projection="linear")
