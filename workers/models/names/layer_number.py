"""The numbers of layers in the decoder, and those in the names of a checkpoint's tensors."""

from ...geometry.geometry import Geometry


class LayerNumber(int):
    """A layer's number in the decoder; as text it is what stands for the layer in the names of tensors."""

    in_names: int | str

    def __format__(self, spec: str) -> str:
        return format(self.in_names, spec)


def layer_numbers(geometry: Geometry) -> list[LayerNumber]:
    """Of all layers, in order."""
    numbers = [LayerNumber(layer) for layer in range(geometry.num_layers)]
    for number, in_names in zip(numbers, geometry.layers_in_names or range(geometry.num_layers), strict=True):
        number.in_names = in_names
    return numbers
