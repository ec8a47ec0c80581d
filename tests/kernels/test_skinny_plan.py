"""How packed products are launched on GPUs of several sizes, without one."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.launch import LaunchMode
from kernels.gpu.linear import Epilogue
from kernels.gpu.packing import PackedFormat
from kernels.gpu.skinny import Device, Launch, plan
from kernels.gpu.tiles import PackedTile

GPUS = [Device("small", 40, 98 << 10), Device("middle", 108, 162 << 10), Device("large", 132, 226 << 10)]
PRODUCTS = [(6144, 4096, Epilogue.STORE), (2048, 2048, Epilogue.ADD), (12288, 4096, Epilogue.GATED),
            (151936, 4096, Epilogue.STORE), (48, 64, Epilogue.STORE)]  # fmt: skip


def planned(
    form: PackedFormat, n: int, k: int, rows: int, epilogue: Epilogue, gpu: Device, **tile: int
) -> Launch | None:
    wide = 2 * n if epilogue is Epilogue.GATED else n
    segments = 8 if wide <= 8192 and k >= 2048 else 4
    chosen = PackedTile(**tile) if tile else None
    return plan(
        form=form,
        segments=segments,
        n=n,
        k=k,
        rows=rows,
        epilogue=epilogue,
        dtype=torch.float16,
        mode=LaunchMode.CHAINED,
        device=gpu,
        tile=chosen,
    )


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("form", list(PackedFormat))
def test_every_output_is_owned_and_every_block_fits(form: PackedFormat, gpu: Device) -> None:
    for n, k, epilogue in PRODUCTS:
        for rows in (1, 9, 17, 33):
            launch = planned(form, n, k, rows, epilogue, gpu)
            if launch is None:
                assert rows > 16, "few rows must fit any GPU"
                continue
            defines = dict(launch.defines)
            assert launch.shared <= gpu.shared
            assert defines["NT"] * 8 >= rows
            assert defines["TILES"] * defines["NT"] <= 16, "sums in registers"
            owned = 16 * defines["TILES"] // (2 if epilogue is Epilogue.GATED else 1)
            assert (launch.grid - 1) * owned < n <= launch.grid * owned
            assert launch.threads == 32 * defines["SEGMENTS"]
            # Registers that the kernel may use must let its blocks run at once.
            assert defines["BLOCKS"] * launch.threads * 96 <= 65536


def test_a_wide_product_fills_the_gpu_in_one_wave() -> None:
    launch = planned(PackedFormat.Q4, 6144, 4096, 1, Epilogue.STORE, GPUS[2])
    assert launch is not None
    assert launch.grid == 128


def test_a_tile_that_does_not_fit_is_not_launched() -> None:
    assert planned(PackedFormat.Q8, 4096, 4096, 1, Epilogue.ADD, GPUS[0], tiles=4, depth=8) is None
