// skinny.cu on the host: one shared library for each set of its defines.
#include "emulated_cuda.h"

#include SOURCE

#ifdef SKINNY
extern "C" void run(int grid, const byte* w, const byte* scales, const float* alpha, const unsigned short* x, void* out,
                    int rows, int n, int k, int x_stride, int out_stride) {
    run_blocks(grid, SEGMENTS * 32, [=] { skinny(w, scales, alpha, x, out, rows, n, k, x_stride, out_stride); });
}
#else
extern "C" void run(int grid, const byte* w, const byte* scales, u32* out, int tiles, int k) {
    run_blocks(grid, 64, [=] { unpack_rows(w, scales, out, tiles, k); });
}
#endif
