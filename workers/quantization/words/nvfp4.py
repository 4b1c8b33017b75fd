"""Matrices in NVFP4: 4-bit floats (e2m1) with a scale in e4m3 for each 16 inputs and one in float32 for the matrix.

by ModelOpt      by compressed-tensors
weight           weight_packed         [out, in / 2]    uint8, two codes, that of the first input in the low half
weight_scale     weight_scale          [out, in / 16]   e4m3
weight_scale_2   weight_global_scale   [] or [1]        float, by which the other scales are multiplied; divided
input_scale      input_global_scale    [] or [1]        float, not used: activations are not rounded
"""

from torch import Tensor

from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.safetensors_files import Checkpoint
from ...checkpoint.weight_forms import GroupedWeight
from .pairs import codes_of_pairs, span_of

GROUP = 16  # inputs that share a scale
HALF = 0.5  # as values of codes are doubled


def read_modelopt_nvfp4(checkpoint: Checkpoint, name: str, part: MatrixPart) -> GroupedWeight:
    checkpoint.skip_tensors(f"{name}.input_scale")
    of_matrix = _scale_of_matrix(checkpoint, f"{name}.weight_scale_2")
    codes, scales = codes_of_pairs(checkpoint, f"{name}.weight", part, GROUP), _scales(checkpoint, name, part)
    return nvfp4_weight(codes, scales * of_matrix * HALF, of_matrix)


def read_compressed_nvfp4(checkpoint: Checkpoint, name: str, part: MatrixPart) -> GroupedWeight:
    checkpoint.skip_tensors(f"{name}.input_global_scale")
    divisor = _scale_of_matrix(checkpoint, f"{name}.weight_global_scale")
    codes, scales = codes_of_pairs(checkpoint, f"{name}.weight_packed", part, GROUP), _scales(checkpoint, name, part)
    return nvfp4_weight(codes, scales / divisor * HALF, 1 / divisor)


def _scale_of_matrix(checkpoint: Checkpoint, tensor: str) -> Tensor:
    scale = checkpoint.read_scale(tensor)
    return (checkpoint.read(tensor, (1,)).view(()) if scale is None else scale).float()


def _scales(checkpoint: Checkpoint, name: str, part: MatrixPart) -> Tensor:
    """The scales [out, groups] of `part`, in float32."""
    shape = part.shape[0], part.shape[1] // GROUP
    return checkpoint.read(f"{name}.weight_scale", shape, part.dim, *span_of(part, GROUP), dtypes=("F8_E4M3",)).float()


def nvfp4_weight(codes: Tensor, scales: Tensor, of_matrix: Tensor) -> GroupedWeight:
    """The matrix with codes [out, in] and halved scales [out, groups], which are multiples of half of the matrix's."""
    units = (of_matrix * HALF).expand(len(codes)).contiguous()
    return GroupedWeight(codes, scales.contiguous(), None, bits=4, is_e2m1=True, units=units)
