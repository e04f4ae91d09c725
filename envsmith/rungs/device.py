"""The rung `device`: forward and backward in BF16 against formulas written out with numpy in float64.

The reference sees the same inputs, already rounded to BF16, so that only torch's arithmetic differs. Compared is the
relative error by norm, |x - r| / |r|. A format with p bits of mantissa (hidden bit included) rounds every result to
2^-p of its size at most: 2^-8 for BF16, 2^-11 for float16, 2^-24 for float32. Each case names how many roundings follow
one another in it. Sums are kept in float32 at best, and the errors of k summands grow as sqrt(k). So a case is allowed
roundings·2^-p + 2·sqrt(k)·2^-24 with its longest sum k; a gradient twice as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import reference
from .answering import Answer, Task, main, pick_device
from .surroundings import mapped_libraries

#: Bits of mantissa with the hidden one.
MANTISSA_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}
MATMUL_SIZES = (128, 256, 512)
#: Side of the square product that is timed, by kind of device.
TIMED_SIZE = {"cuda": 4096, "cpu": 512}
#: Rows and columns of the timed product that are compared with the reference.
COMPARED_ROWS, COMPARED_COLUMNS = 16, 64
#: Times sqrt(k)·2^-24: what a sum of k numbers in float32 may lose.
SUMMING = 2.0
#: (batch, heads, tokens, head size)
ATTENTION = (2, 4, 128, 64)
#: (rows, width)
LAYERNORM = (256, 512)
#: (rows, width, inner width, classes)
MLP = (128, 256, 512, 512)
#: BF16 in hardware begins with this compute capability (CUDA C Programming Guide, read 2026-11-30).
BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Case:
    """One computation: from inputs to an output, with gradients for every input."""

    name: str
    compute: Callable[..., Any]
    inputs: list[Any]
    """Float32 tensors on the CPU whose values the format holds exactly."""
    roundings: int
    longest: int
    """Summands of its longest sum, forward or backward."""
    reference: Callable[..., tuple[Any, list[Any]]]
    """The same with numpy: from the output's weights and the inputs to the output and all gradients."""

    def allowed(self, dtype: Any) -> float:
        """The relative error that rounding explains, forward."""
        return allowed(self.roundings, self.longest, dtype)


def allowed(roundings: int, longest: int, dtype: Any) -> float:
    """Roundings in the format, and the sum in float32."""
    bits = MANTISSA_BITS[str(dtype).removeprefix("torch.")]
    return float(roundings * 2.0**-bits + SUMMING * longest**0.5 * 2.0 ** -MANTISSA_BITS["float32"])


def run(task: Task, answer: Answer) -> None:
    """Compare all cases, time the largest product and name the device."""
    import torch

    device = pick_device(answer)
    name = task.options.get("dtype", "bfloat16")
    if not usable(name, device, answer):
        return
    dtype = getattr(torch, name)
    answer.figures["dtype_name"] = name
    answer.figures["reference_name"] = "numpy float64" if reference.here() else "torch"
    if not reference.here():
        answer.say("reference-is-torch", "note", "the env has no numpy: torch is compared with itself on the CPU",
                   hint="a fault that torch has on every device alike is not seen; add numpy to the env")  # fmt: skip
    for case in cases(task.seed, dtype):
        compare(case, device, dtype, answer)
    time_product(task.seed, device, dtype, answer)
    describe(device, answer)


def usable(name: str, device: str, answer: Answer) -> bool:
    """Whether the card has the format; a card without BF16 fails unless the recipe asks for another one."""
    import torch

    if name not in MANTISSA_BITS:
        allowed = ", ".join(MANTISSA_BITS)
        answer.say("dtype-unsupported", "failed", f"`dtype` is `{name}`", expected=allowed, actual=name)
        return False
    if name != "bfloat16":
        answer.say("not-bf16", "note", f"the recipe asks for {name}: nothing is shown about BF16")
    if name != "bfloat16" or device == "cpu":
        return True
    capability = torch.cuda.get_device_capability(device)
    if capability >= BF16_CAPABILITY:
        return True
    answer.say(
        "dtype-unsupported",
        "failed",
        "this card has no BF16 arithmetic",
        expected="compute capability 8.0 or more",
        actual=".".join(str(number) for number in capability),
        hint='set `dtype = "float16"` or `dtype = "float32"` for this rung and train in it',
    )
    return False


def cases(seed: int, dtype: Any) -> list[Case]:
    """Products of three sizes, attention, layer norm, GELU, and cross entropy through a small MLP block."""
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0, middle: float = 0.0) -> Any:
        return (torch.randn(shape, generator=generator) * scale + middle).to(dtype).float()

    def block(x: Any, gain: Any, inner: Any, outer: Any) -> Any:
        hidden = functional.gelu(functional.layer_norm(x, x.shape[-1:], gain) @ inner)
        return functional.cross_entropy((hidden @ outer).float(), torch.arange(len(x), device=x.device))

    def norm(x: Any, gain: Any, bias: Any) -> Any:
        return functional.layer_norm(x, x.shape[-1:], gain, bias)

    found = []
    for n in MATMUL_SIZES:
        pair = [normal(n, n), normal(n, n, scale=n**-0.5)]
        found.append(Case(f"matmul_{n}", torch.matmul, pair, 2, n, reference.matmul))
    three = [normal(*ATTENTION) for _ in range(3)]
    attention = functional.scaled_dot_product_attention
    found.append(Case("attention", attention, three, 4, max(ATTENTION), reference.attention))
    (rows, width), tall = LAYERNORM, max(LAYERNORM)
    # Neither their middle nor their spread is that of normed rows: what does not norm is far off.
    normed = [normal(rows, width, scale=2.0, middle=1.0), normal(width), normal(width)]
    found.append(Case("layernorm", norm, normed, 4, tall, reference.layer_norm))
    found.append(Case("gelu", functional.gelu, [normal(rows, width)], 4, 1, reference.gelu))
    rows, width, inside, classes = MLP
    weights = [normal(width), normal(width, inside, scale=width**-0.5), normal(inside, classes, scale=inside**-0.5)]
    found.append(Case("mlp_loss", block, [normal(rows, width), *weights], 6, max(MLP), reference.mlp_loss))
    return found


def compare(case: Case, device: str, dtype: Any, answer: Answer) -> None:
    """Run a case on the device and as reference, and say how far output and gradients are apart."""
    import torch

    computed(case, device, dtype)  # the first call loads kernels
    got, gradients, taken_s = computed(case, device, dtype)
    if reference.here():
        seeds = output_weights(got.shape).double()
        wanted, wanted_gradients = case.reference(*map(reference.array, [seeds, *case.inputs]))
    else:
        kind = torch.float64 if dtype == torch.float32 else torch.float32
        wanted, wanted_gradients, _ = computed(case, "cpu", kind)
    answer.figures[f"{case.name}_forward_backward_ms"] = round(taken_s * 1000, 3)
    bound = case.allowed(dtype)
    judge(answer, f"{case.name}_forward", relative_error(got, wanted), bound)
    errors = [relative_error(one, other) for one, other in zip(gradients, wanted_gradients, strict=True)]
    worst = max(errors, key=lambda error: float("inf") if error != error else error)
    judge(answer, f"{case.name}_gradient", worst, 2 * bound)


def output_weights(shape: Any) -> Any:
    """Fixed numbers that weigh an output before the gradients are taken; every format holds them exactly."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()


def computed(case: Case, device: str, dtype: Any) -> tuple[Any, list[Any], float]:
    """Output, gradients and seconds."""
    import torch

    inputs = [value.to(device=device, dtype=dtype, copy=True).requires_grad_() for value in case.inputs]
    started = time.perf_counter()
    output = case.compute(*inputs)
    weights = output_weights(output.shape).to(device=device, dtype=output.dtype)
    gradients = torch.autograd.grad(output, inputs, weights)
    if device != "cpu":
        torch.cuda.synchronize()
    return output.detach(), list(gradients), time.perf_counter() - started


def relative_error(got: Any, wanted: Any) -> float:
    """As reference.relative_error; of torch's tensors where the env has no numpy."""
    import torch

    if reference.here():
        return reference.relative_error(reference.array(got), wanted)
    got, wanted = got.detach().double().cpu(), wanted.detach().double().cpu()
    if not bool(torch.isfinite(got).all()):
        return float("nan")
    return float((got - wanted).norm() / wanted.norm())


def judge(answer: Answer, name: str, error: float, bound: float) -> None:
    """State one comparison."""
    answer.figures[f"{name}_relative_error"] = error
    answer.figures[f"{name}_relative_error_allowed"] = bound
    if error != error:
        answer.say("not-finite", "failed", f"{name} gave a number that is not finite", subject=name)
        return
    answer.check(
        "numerics",
        error <= bound,
        f"{name} is as near to the reference as its format allows",
        otherwise=f"{name} is farther from the reference than rounding explains",
        subject=name,
        expected=f"a relative error of {bound:.2e} at most",
        actual=f"{error:.2e}",
    )


def time_product(seed: int, device: str, dtype: Any, answer: Answer) -> None:
    """Time a large product, and compare a part of it with the reference."""
    import torch

    size = TIMED_SIZE["cpu" if device == "cpu" else "cuda"]
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(size, size, generator=generator).to(dtype)
    right = (torch.randn(size, size, generator=generator) * size**-0.5).to(dtype)
    step = size // COMPARED_COLUMNS
    parts = [left[:COMPARED_ROWS].double(), right[:, ::step].double()]
    wanted = reference.array(parts[0]) @ reference.array(parts[1]) if reference.here() else parts[0] @ parts[1]
    left, right = left.to(device), right.to(device)
    product = left @ right
    times = []
    for _ in range(5):
        started = time.perf_counter()
        product = left @ right
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    # Kernels for large products may add partial sums in the format itself: twice what a small product may lose.
    bound = allowed(4, size, dtype)
    judge(answer, f"matmul_{size}_timed", relative_error(product[:COMPARED_ROWS, ::step], wanted), bound)
    answer.figures[f"matmul_{size}_timed_ms"] = round(min(times) * 1000, 3)
    answer.figures["achieved_tflop_per_s"] = round(2 * size**3 / min(times) / 1e12, 3)


def describe(device: str, answer: Answer) -> None:
    """Versions and memory: what torch was built for, what the driver offers, what the process maps."""
    import torch

    answer.figures["torch_version"] = torch.__version__
    answer.figures["torch_cuda_version"] = torch.version.cuda or "none"
    answer.figures["matmul_sizes_elements"] = list(MATMUL_SIZES)
    if device == "cpu":
        return
    answer.figures["compute_capability_version"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
    answer.figures["libcuda_paths"] = ", ".join(mapped_libraries("libcuda.so"))
    answer.figures["libcudart_paths"] = ", ".join(mapped_libraries("libcudart"))
    answer.figures["libcuda_version"] = libcuda_version()
    answer.figures["allocated_bytes"] = torch.cuda.memory_allocated(device)
    answer.figures["reserved_bytes"] = torch.cuda.memory_reserved(device)
    answer.figures["peak_allocated_bytes"] = torch.cuda.max_memory_allocated(device)


def libcuda_version() -> str:
    """The CUDA of the driver's library that this process has mapped, as its own `cuDriverGetVersion` says."""
    import ctypes

    version = ctypes.c_int()
    # Already mapped by torch, so its SONAME gives the very same library.
    result = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}" if result == 0 else f"error {result}"


if __name__ == "__main__":
    main(run)
