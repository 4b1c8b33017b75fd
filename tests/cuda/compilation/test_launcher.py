"""The loader without a device: compilation, loading, the arguments for CuPy, and refusals."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.kernels.cuda.elementwise import RmsNormParams, rms_norm, rms_norm_kernel
from paged_serve.workers.kernels.cuda.launcher import CudaLauncher
from paged_serve.workers.kernels.cuda.requirements import (
    architecture,
    check_compiler,
    check_driver,
    cubin_folder,
    import_cupy,
)

from .cubin import read_cubin

PARAMS = RmsNormParams(1 << 40, 2, 3, 4, 0.5)


class FakeFunction:
    """What cupy.RawKernel offers of a function: it is loaded when it is first asked for its `kernel`."""

    def __init__(self, address: int):
        self._loaded = SimpleNamespace(ptr=address)
        self.loads, self.max_dynamic_shared_size_bytes = 0, 0

    @property
    def kernel(self):
        self.loads += 1
        return self._loaded


class FakeCupy:
    """A CuPy that finds functions in cubins with our reader, and records the arguments of the driver's launches."""

    def __init__(self):
        self.functions, self.launches = {}, []
        self.cuda = SimpleNamespace(driver=SimpleNamespace(launchKernel=self.launch))

    def RawModule(self, *, path):  # noqa: N802
        found = read_cubin(Path(path).read_bytes())

        def get_function(name):
            assert name in found
            return self.functions.setdefault(name, FakeFunction(len(self.functions) + 1))

        return SimpleNamespace(get_function=get_function)

    def launch(self, *arguments):
        *rest, parameters, extra = arguments
        (params,) = (ctypes.c_void_p * 1).from_address(parameters)
        self.launches.append((*rest, ctypes.string_at(params, ctypes.sizeof(PARAMS)), extra))


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def streams():
    """The successive pointers of torch's current stream."""
    return [7]


@pytest.fixture
def launcher(cupy, streams, tmp_path):
    from paged_serve.workers.kernels.cuda.nvrtc import CubinCache

    return CudaLauncher(cupy, CubinCache(tmp_path), "sm_90a", lambda: streams[-1])


def test_a_launch_passes_grid_block_shared_memory_stream_and_one_struct(launcher, cupy):
    kernel = rms_norm_kernel(torch.bfloat16, 1024)
    launcher.launch(kernel, (3, 2, 1), PARAMS)
    function = cupy.functions["rms_norm"]
    assert function.max_dynamic_shared_size_bytes == kernel.shared_bytes
    block = kernel.threads, 1, 1
    assert cupy.launches == [(function.kernel.ptr, 3, 2, 1, *block, kernel.shared_bytes, 7, bytes(PARAMS), 0)]


def test_every_launch_uses_the_current_stream(launcher, cupy, streams):
    kernel = rms_norm_kernel(torch.bfloat16, 1024)
    for pointer in (7, 9, 7):
        streams.append(pointer)
        launcher.launch(kernel, (1, 1, 1), PARAMS)
    assert [launch[8] for launch in cupy.launches] == [7, 9, 7]


def test_loading_launches_nothing_and_happens_once(launcher, cupy, tmp_path):
    kernels = [rms_norm_kernel(dtype, 1024) for dtype in (torch.bfloat16, torch.float16)]
    launcher.load_all([*kernels, *kernels])
    assert len(list(tmp_path.glob("rms_norm-sm_90a-*.cubin"))) == 2
    cubins = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    launcher.load_all(kernels)
    launcher.launch(kernels[0], (1, 1, 1), PARAMS)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == cubins
    assert len(cupy.launches) == 1
    assert cupy.functions["rms_norm"].loads == 2


def test_progress_is_reported_after_each_kernel(launcher):
    kernels, reported = [rms_norm_kernel(torch.bfloat16, size) for size in (64, 128, 256)], []
    launcher.load_all(kernels[:1])
    launcher.load_all(kernels, lambda *progress: reported.append(progress))
    assert reported == [(1, 2), (2, 2)]


def test_a_kernel_that_does_not_compile_ends_the_loading(launcher):
    with pytest.raises(RuntimeError, match=r"rms_norm\.cu for sm_90a: .*static assertion failed"):
        launcher.load_all([rms_norm_kernel(torch.bfloat16, 64), rms_norm_kernel(torch.bfloat16, 63)])


def test_containers_whose_processes_have_the_same_id_may_compile_the_same_kernel(tmp_path, monkeypatch):
    from paged_serve.workers.kernels.cuda.nvrtc import CubinCache

    kernel, replace = rms_norm_kernel(torch.bfloat16, 1024), Path.replace

    def replace_after_another_container(source, target):
        monkeypatch.setattr(Path, "replace", replace)
        CubinCache(tmp_path).path(kernel, "sm_90a")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", replace_after_another_container)
    path = CubinCache(tmp_path).path(kernel, "sm_90a")
    assert list(tmp_path.iterdir()) == [path]
    assert "rms_norm" in read_cubin(path.read_bytes())


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 65536, 1), (2**31, 1, 1), (1, 1, -1)])
def test_a_grid_beyond_the_limits_of_devices_is_refused(launcher, grid):
    with pytest.raises(AssertionError):
        launcher.launch(rms_norm_kernel(torch.bfloat16, 1024), grid, PARAMS)


def test_a_wrapper_with_no_rows_launches_nothing(launcher, cupy):
    rms_norm(launcher, torch.empty((0, 1024), dtype=torch.bfloat16), torch.ones(1024), 1e-6)
    assert not cupy.functions


@pytest.mark.skipif(torch.cuda.is_available(), reason="a null function would be launched")
def test_cupy_accepts_the_arguments_of_a_launch():
    """CuPy converts arguments before it calls the driver; it raises TypeError for those that it cannot convert."""
    import cupy

    launcher = CudaLauncher(cupy, None, "sm_90a", lambda: 0)
    kernel = rms_norm_kernel(torch.bfloat16, 1024)
    launcher._functions[kernel] = SimpleNamespace(ptr=0)
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR|libcuda"):
        launcher.launch(kernel, (1, 1, 1), PARAMS)
    with pytest.raises(TypeError):
        cupy.cuda.driver.launchKernel(0, 1, 1, 1, 32, 1, 1, 0, 0, PARAMS, 0)
    assert "kernel" in dir(cupy.RawKernel)


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120")],
)
def test_an_architecture_is_named_as_in_nvrtc(capability, arch):
    assert architecture("NVIDIA H200", capability) == arch


def test_a_gpu_that_is_too_old_is_refused():
    with pytest.raises(ConfigError, match=r"Tesla T4 is sm_75; the kernels need sm_80 .* device=cpu"):
        architecture("Tesla T4", (7, 5))


def test_a_driver_loads_code_for_its_major_version_or_an_older_one():
    check_driver(13000, (13, 2))
    check_driver(13000, (12, 9))
    with pytest.raises(ConfigError, match=r"CUDA 12\.8, too old for .*NVRTC 13\.0.*paged-serve\[cuda12\]"):
        check_driver(12080, (13, 0))


def test_an_nvrtc_that_does_not_know_the_gpu_is_refused():
    check_compiler("sm_90a", (12, 9), (80, 90))
    with pytest.raises(ConfigError, match=r"NVRTC 12\.4 does not compile for sm_120, only for 80, 90; .*cuda13"):
        check_compiler("sm_120", (12, 4), (80, 90))


def test_the_installed_nvrtc_knows_what_the_gate_compiles_for():
    cupy = import_cupy("13.0")
    for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)):
        check_compiler(architecture("", capability), cupy.cuda.nvrtc.getVersion(), cupy.cuda.nvrtc.getSupportedArchs())


@pytest.mark.parametrize(("torch_cuda", "extra"), [("12.8", "cuda12"), ("13.0", "cuda13"), (None, "cuda13")])
def test_without_cupy_the_extra_to_install_is_named(monkeypatch, torch_cuda, extra):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigError, match=rf"needs CuPy and NVRTC \(.*cupy.*\).*paged-serve\[{extra}\]"):
        import_cupy(torch_cuda)


def test_without_nvrtc_the_extra_to_install_is_named(monkeypatch):
    def missing():
        raise RuntimeError('Failure finding "libnvrtc.so.13 or libnvrtc.so.12"\nand a long story')

    nvrtc = SimpleNamespace(getVersion=missing)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(nvrtc=nvrtc)))
    with pytest.raises(ConfigError, match=r'\(Failure finding "libnvrtc.so.13 or libnvrtc.so.12"\); .*\[cuda12\]'):
        import_cupy("12.6")


def test_cubins_are_stored_in_the_cache_directory():
    assert cubin_folder(ModelConfig()) == Path.home() / ".cache" / "paged-serve" / "cubins"
    assert cubin_folder(ModelConfig(cache_dir="/scratch")) == Path("/scratch/paged-serve/cubins")


def test_a_user_without_a_home_folder_is_asked_for_a_cache_directory(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(ConfigError, match="--cache-dir"):
        cubin_folder(ModelConfig())
