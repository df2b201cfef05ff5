/* Kernels on bare metal: a program for a Cortex-M4 without a C library, which runs a convolution and a
 * product of bytes through the header and checks both. Ends the emulator with status 0 if all is right. */

#include "tilewright.h"

extern uint32_t bss_begin, bss_end, data_begin, data_end, data_load, stack_end;

/* What the emulator does for the program. */
static int call_host(int what, const void *with) {
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void print(const char *text) { call_host(4, text); }

static void stop(int good) {
    call_host(0x18, (const void *)(good ? 0x20026 : 0x20023));
    for (;;) {
    }
}

static void check(int right, const char *what) {
    if (!right) {
        print(what);
        print(": ");
        print(tw_last_error());
        print("\n");
        stop(0);
    }
}

enum { M = 3, K = 20, N = 18, C_IN = 3, C_OUT = 20, H = 7, W = 5 };

static union { double align; uint8_t bytes[TW_KERNEL_BYTES]; } place;
static int32_t packed[4096], scratch[4096], out[2 * H * W * 16], bias[C_OUT];
static int8_t x[H * W * 16], w[C_OUT * C_IN * 9];

static void run(tw_kernel *kernel, size_t weights, size_t y_bytes) {
    tw_kernel_sizes sizes;
    tw_weights from = {0};
    tw_operands operands = {0};
    check(tw_kernel_sizes_of(kernel, &sizes) == TW_OK, "sizes");
    check(sizes.y == y_bytes && sizes.x <= sizeof x, "sizes of operands");
    from.size = sizeof from;
    from.w = w;
    from.count = weights;
    from.bias = bias;
    check(tw_kernel_pack(kernel, &from, packed, 8) == TW_BUFFER_TOO_SMALL, "too little room");
    check(tw_kernel_pack(kernel, &from, packed, sizeof packed) == TW_OK, "pack");
    operands.size = sizeof operands;
    operands.x = x;
    operands.x_bytes = sizeof x;
    operands.packed = packed;
    operands.packed_bytes = sizeof packed;
    operands.y = out;
    operands.y_bytes = sizeof out;
    operands.scratch = scratch;
    operands.scratch_bytes = sizeof scratch;
    check(tw_kernel_run(kernel, &operands) == TW_OK, "run");
    tw_kernel_free(kernel);
}

static void product(void) {
    tw_gemm gemm = {0};
    tw_quant quant = {0};
    tw_kernel *kernel = 0;
    int i, j, k;
    gemm.size = sizeof gemm;
    gemm.m = M;
    gemm.k = K;
    gemm.n = N;
    quant.size = sizeof quant;
    quant.x_type = quant.w_type = TW_I8;
    quant.y_type = TW_I32;
    quant.x_zero_point = 5;
    check(tw_qgemm_new(&gemm, &quant, 0, 0, &kernel) == TW_INVALID_ARGUMENT, "there is no allocator");
    check(tw_last_error()[0] == 'm', "the error says so");
    check(tw_qgemm_new(&gemm, &quant, &place, sizeof place, &kernel) == TW_OK, "a product");
    run(kernel, K * N, M * N * 4);
    for (i = 0; i < M; i++) {
        for (j = 0; j < N; j++) {
            int32_t sum = bias[j];
            for (k = 0; k < K; k++) sum += (x[i * K + k] - 5) * w[k * N + j];
            check(out[i * N + j] == sum, "a sum of the product");
        }
    }
    print("product: ok\n");
}

static void convolution(void) {
    tw_window window = {0};
    tw_quant quant = {0};
    tw_kernel *kernel = 0;
    int c, y, u, i, r, s;
    window.size = sizeof window;
    window.n = 1;
    window.c_in = C_IN;
    window.c_out = C_OUT;
    window.h = H;
    window.w = W;
    window.kernel[0] = window.kernel[1] = 3;
    for (i = 0; i < 4; i++) window.pads[i] = 1;
    window.interleaved = 1;
    quant.size = sizeof quant;
    quant.x_type = quant.w_type = TW_I8;
    quant.y_type = TW_I32;
    quant.x_zero_point = -4;
    check(tw_qconv_new(&window, &quant, &place, sizeof place, &kernel) == TW_OK, "a convolution");
    run(kernel, C_OUT * C_IN * 9, 2 * H * W * 16 * 4);
    for (c = 0; c < C_OUT; c++) {
        for (y = 0; y < H; y++) {
            for (u = 0; u < W; u++) {
                int32_t sum = bias[c];
                for (i = 0; i < C_IN; i++) {
                    for (r = 0; r < 3; r++) {
                        for (s = 0; s < 3; s++) {
                            int v = y + r - 1, h = u + s - 1;
                            if (v < 0 || v >= H || h < 0 || h >= W) continue;
                            sum += (x[(v * W + h) * C_IN + i] + 4) * w[((c * C_IN + i) * 3 + r) * 3 + s];
                        }
                    }
                }
                check(out[((c / 16 * H + y) * W + u) * 16 + c % 16] == sum, "a sum of the convolution");
            }
        }
    }
    print("convolution: ok\n");
}

static void reset(void) {
    uint32_t *to, *from = &data_load, state = 7;
    size_t i;
    /* The floating-point unit is off after a reset. */
    *(volatile uint32_t *)0xe000ed88u |= 0xfu << 20;
    __asm__ volatile("dsb\n\tisb");
    for (to = &data_begin; to < &data_end;) *to++ = *from++;
    for (to = &bss_begin; to < &bss_end;) *to++ = 0;
    for (i = 0; i < sizeof x; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (int8_t)(state >> 24);
    }
    for (i = 0; i < sizeof w; i++) {
        state = state * 1664525u + 1013904223u;
        w[i] = (int8_t)(state >> 24);
    }
    for (i = 0; i < C_OUT; i++) bias[i] = (int32_t)i * 1000 - 7000;
    check(tw_abi_version() == TW_ABI_VERSION, "version");
    product();
    convolution();
    stop(1);
}

static void fault(void) {
    print("a fault\n");
    stop(0);
}

/* What the processor reads first. */
struct vectors {
    const void *stack;
    void (*handlers[3])(void);
};

__attribute__((section(".vectors"), used)) static const struct vectors vectors = {
    &stack_end, {reset, fault, fault},
};
