"""The interface of the kinds of recurrent layers."""

from typing import Protocol

import torch


class Recurrent(Protocol):
    """One kind of recurrent layer, with its sizes. Methods with `tp_size` give the share of one rank."""

    def state_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        """Bytes of the layer's state after any token; `dtype` is the model's."""
        ...

    def draft_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        """Bytes of the inputs that operations on the state have at one token, which are copied if it is a draft."""
        ...

    def uneven(self, tp_size: int) -> str:
        """The name and number of what `tp_size` ranks cannot divide evenly; "" if there is nothing."""
        ...
