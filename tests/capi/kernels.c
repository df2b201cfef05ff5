/* Kernels from C, against sums from their definitions. With -DKERNELS_ONLY for the library without models. */

#include <stdint.h>

#include "check.h"

static unsigned state = 12345;

/* Small integers: their sums of products are exact. */
static int number(void) {
    state = state * 1664525u + 1013904223u;
    return (int)(state >> 24) % 7 - 3;
}

#ifndef KERNELS_ONLY
static long pieces = 0;

static void *give(void *user, size_t bytes, size_t align) {
    void *memory = NULL;
    *(long *)user += 1;
    return posix_memalign(&memory, align < sizeof memory ? sizeof memory : align, bytes) ? NULL : memory;
}

static void take(void *user, void *memory, size_t bytes, size_t align) {
    (void)user;
    (void)bytes;
    (void)align;
    free(memory);
}
#endif

enum { ROOM = 1 << 16 };

static float fx[ROOM], fw[ROOM], fy[ROOM], fb[64], added[ROOM], plain[ROOM];
static int8_t qx[ROOM], qw[ROOM], qy[ROOM];
static int32_t qb[64], sums[ROOM];
static float scales[1];
static union { double align; unsigned char bytes[TW_KERNEL_BYTES]; } place;

static void fill(void) {
    size_t i;
    for (i = 0; i < ROOM; i++) {
        fx[i] = (float)number();
        fw[i] = (float)number();
        added[i] = (float)number();
        qx[i] = (int8_t)number();
        qw[i] = (int8_t)number();
    }
    for (i = 0; i < 64; i++) fb[i] = (float)(qb[i] = number());
}

/* Packs and runs a kernel three times with margins that nothing may write, and frees it. */
static void run(tw_kernel *kernel, const void *x, const void *w, size_t count, const void *bias,
                const void *residual, void *y, size_t y_bytes) {
    tw_kernel_sizes sizes;
    tw_weights weights;
    tw_operands operands;
    unsigned char *packed, *scratch, *out = NULL;
    size_t i, round;
    DONE(tw_kernel_sizes_of(kernel, &sizes));
    CHECK(sizes.y == y_bytes);
    packed = (unsigned char *)malloc(sizes.packed + 1);
    scratch = (unsigned char *)malloc(sizes.scratch + 1);
    out = (unsigned char *)malloc(sizes.y + 64);
    CHECK(packed && scratch && out);
    memset(&weights, 0, sizeof weights);
    weights.size = sizeof weights;
    weights.w = w;
    weights.count = count;
    weights.bias = bias;
    weights.scales = scales;
    weights.scale_count = 1;
    if (sizes.packed) {
        GIVES(tw_kernel_pack(kernel, &weights, packed, sizes.packed - 1), TW_BUFFER_TOO_SMALL, "packed");
        GIVES(tw_kernel_pack(kernel, &weights, NULL, sizes.packed), TW_INVALID_ARGUMENT, "packed is NULL");
        weights.count = count - 1;
        GIVES(tw_kernel_pack(kernel, &weights, packed, sizes.packed), TW_BUFFER_TOO_SMALL, "");
        weights.count = count;
    }
    DONE(tw_kernel_pack(kernel, &weights, packed, sizes.packed));
    memset(&operands, 0, sizeof operands);
    operands.size = sizeof operands;
    operands.x = x;
    operands.x_bytes = sizes.x;
    operands.packed = packed;
    operands.packed_bytes = sizes.packed;
    operands.residual = residual;
    operands.residual_bytes = residual ? sizes.residual : 0;
    operands.y = out;
    operands.y_bytes = sizes.y;
    operands.scratch = scratch;
    operands.scratch_bytes = sizes.scratch;
    memset(out, 0xa5, sizes.y + 64);
    operands.y_bytes = sizes.y - 1;
    GIVES(tw_kernel_run(kernel, &operands), TW_BUFFER_TOO_SMALL, "y has");
    operands.y_bytes = sizes.y;
    operands.x = NULL;
    GIVES(tw_kernel_run(kernel, &operands), TW_INVALID_ARGUMENT, "x is NULL");
    operands.x = out;
    GIVES(tw_kernel_run(kernel, &operands), TW_INVALID_ARGUMENT, "");
    operands.x = x;
    GIVES(tw_kernel_run(NULL, &operands), TW_INVALID_ARGUMENT, "kernel is NULL");
    GIVES(tw_kernel_run(kernel, NULL), TW_INVALID_ARGUMENT, "operands is NULL");
    for (i = 0; i < sizes.y + 64; i++) CHECK(out[i] == 0xa5);
    for (round = 0; round < 3; round++) {
#ifndef KERNELS_ONLY
        long before = pieces;
        DONE(tw_kernel_run(kernel, &operands));
        CHECK(pieces == before);
#else
        DONE(tw_kernel_run(kernel, &operands));
#endif
        for (i = sizes.y; i < sizes.y + 64; i++) CHECK(out[i] == 0xa5);
    }
    memcpy(y, out, sizes.y);
    free(packed);
    free(scratch);
    free(out);
    tw_kernel_free(kernel);
}

static void products(size_t m, size_t k, size_t n, int transposed) {
    tw_gemm gemm;
    tw_quant quant;
    tw_kernel *kernel = NULL;
    size_t i, j, l;
    memset(&gemm, 0, sizeof gemm);
    gemm.size = sizeof gemm;
    gemm.m = m;
    gemm.k = k;
    gemm.n = n;
    gemm.transposed = transposed;
    gemm.activation = TW_RELU;
    gemm.residual = 1;
    DONE(tw_sgemm_new(&gemm, NULL, 0, &kernel));
    run(kernel, fx, fw, k * n, fb, added, fy, m * n * sizeof(float));
    for (i = 0; i < m; i++) {
        for (j = 0; j < n; j++) {
            float sum = fb[j] + added[i * n + j];
            for (l = 0; l < k; l++) sum += fx[i * k + l] * fw[transposed ? j * k + l : l * n + j];
            CHECK(fy[i * n + j] == (sum > 0 ? sum : 0));
        }
    }
    gemm.activation = gemm.residual = 0;
    memset(&quant, 0, sizeof quant);
    quant.size = sizeof quant;
    quant.x_type = quant.w_type = TW_I8;
    quant.y_type = TW_I32;
    quant.x_zero_point = 1;
    DONE(tw_qgemm_new(&gemm, &quant, place.bytes, sizeof place, &kernel));
    run(kernel, qx, qw, k * n, qb, NULL, sums, m * n * sizeof(int32_t));
    quant.y_type = TW_I8;
    quant.y_zero_point = 3;
    scales[0] = 0.25f;
    DONE(tw_qgemm_new(&gemm, &quant, NULL, 0, &kernel));
    run(kernel, qx, qw, k * n, qb, NULL, qy, m * n);
    for (i = 0; i < m; i++) {
        for (j = 0; j < n; j++) {
            int32_t sum = qb[j], down, rest;
            for (l = 0; l < k; l++) sum += (qx[i * k + l] - 1) * qw[transposed ? j * k + l : l * n + j];
            CHECK(sums[i * n + j] == sum);
            /* A quarter, rounded to the nearest, ties to even. */
            down = sum >= 0 ? sum / 4 : -((-sum + 3) / 4);
            rest = sum - 4 * down;
            if (rest == 3 || (rest == 2 && down % 2 != 0)) down++;
            down += 3;
            CHECK(qy[i * n + j] == (down < -128 ? -128 : down > 127 ? 127 : down));
        }
    }
}

/* Element (c, y, x) of one picture, blocked. */
static size_t at(size_t c, size_t y, size_t x, size_t h, size_t w) {
    return ((c / 16 * h + y) * w + x) * 16 + c % 16;
}

static void windows(size_t c_in, size_t c_out, size_t h, size_t w, size_t f, size_t stride) {
    tw_window window;
    tw_quant quant;
    tw_kernel *kernel = NULL;
    size_t out[4], rows, columns, c, y, x, i, r, s, y_count, deep;
    memset(&window, 0, sizeof window);
    window.size = sizeof window;
    window.n = 1;
    window.c_in = c_in;
    window.c_out = c_out;
    window.h = h;
    window.w = w;
    window.kernel[0] = window.kernel[1] = f;
    window.stride[0] = window.stride[1] = stride;
    for (i = 0; i < 4; i++) window.pads[i] = f / 2;
    DONE(tw_window_output(&window, &rows, &columns));
    CHECK(rows == (h + 2 * (f / 2) - f) / stride + 1);
    out[0] = 1;
    out[1] = c_out;
    out[2] = rows;
    out[3] = columns;
    y_count = tw_blocked_count(out);
    memset(&quant, 0, sizeof quant);
    quant.size = sizeof quant;
    quant.x_type = quant.w_type = TW_I8;
    quant.y_type = TW_I32;
    quant.x_zero_point = 2;
    DONE(tw_qconv_new(&window, &quant, place.bytes, sizeof place, &kernel));
    run(kernel, qx, qw, c_out * c_in * f * f, qb, NULL, sums, y_count * sizeof(int32_t));
    DONE(tw_conv_new(&window, NULL, 0, &kernel));
    run(kernel, fx, fw, c_out * c_in * f * f, fb, NULL, fy, y_count * sizeof(float));
    /* From blocked to plain and back is the same. */
    DONE(tw_block(TW_PLANAR | TW_UNBLOCK, 4, out, fy, y_count * 4, plain, sizeof plain));
    for (c = 0; c < c_out; c++) {
        for (y = 0; y < rows; y++) {
            for (x = 0; x < columns; x++) {
                float sum = fb[c];
                int32_t whole = qb[c];
                for (i = 0; i < c_in; i++) {
                    for (r = 0; r < f; r++) {
                        for (s = 0; s < f; s++) {
                            size_t v = y * stride + r, u = x * stride + s, k = ((c * c_in + i) * f + r) * f + s;
                            int inside = v >= f / 2 && v - f / 2 < h && u >= f / 2 && u - f / 2 < w;
                            size_t from = inside ? at(i, v - f / 2, u - f / 2, h, w) : 0;
                            if (inside) sum += fx[from] * fw[k];
                            if (inside) whole += (qx[from] - 2) * qw[k];
                        }
                    }
                }
                CHECK(sums[at(c, y, x, rows, columns)] == whole);
                /* Winograd's algorithm rounds. */
                CHECK(plain[(c * rows + y) * columns + x] - sum < 1e-2f);
                CHECK(sum - plain[(c * rows + y) * columns + x] < 1e-2f);
            }
        }
    }
    /* A channel each, and pooling. */
    window.c_out = 0;
    out[1] = c_in;
    y_count = tw_blocked_count(out);
    for (deep = 0; deep < 3; deep++) {
        if (deep == 0) {
            DONE(tw_depthwise_new(&window, NULL, 0, &kernel));
            run(kernel, fx, fw, c_in * f * f, fb, NULL, fy, y_count * sizeof(float));
        } else {
            DONE(tw_pool_new(&window, deep == 1 ? TW_MAX : TW_AVERAGE, NULL, 0, &kernel));
            run(kernel, fx, NULL, 0, NULL, NULL, fy, y_count * sizeof(float));
        }
        scales[0] = 1.0f;
        quant.y_type = TW_I8;
        quant.y_zero_point = 2;
        if (deep == 0) {
            DONE(tw_qdepthwise_new(&window, &quant, NULL, 0, &kernel));
            run(kernel, qx, qw, c_in * f * f, qb, NULL, qy, y_count);
        } else {
            DONE(tw_qpool_new(&window, deep == 1 ? TW_MAX : TW_AVERAGE, &quant, 1.0f, NULL, 0, &kernel));
            run(kernel, qx, NULL, 0, NULL, NULL, qy, y_count);
        }
        for (c = 0; c < c_in; c++) {
            for (y = 0; y < rows; y++) {
                for (x = 0; x < columns; x++) {
                    float sum = deep == 0 ? fb[c] : 0, most = -100, count = 0;
                    int32_t whole = deep == 0 ? qb[c] : 0, largest = -128;
                    float found = fy[at(c, y, x, rows, columns)];
                    int32_t byte = qy[at(c, y, x, rows, columns)];
                    for (r = 0; r < f; r++) {
                        for (s = 0; s < f; s++) {
                            size_t v = y * stride + r, u = x * stride + s, from;
                            float weight = deep == 0 ? fw[(c * f + r) * f + s] : 1;
                            if (v < f / 2 || v - f / 2 >= h || u < f / 2 || u - f / 2 >= w) continue;
                            from = at(c, v - f / 2, u - f / 2, h, w);
                            sum += fx[from] * weight;
                            whole += (qx[from] - 2) * (deep == 0 ? qw[(c * f + r) * f + s] : 1);
                            if (fx[from] > most) most = fx[from];
                            if (qx[from] > largest) largest = qx[from];
                            count += 1;
                        }
                    }
                    if (deep == 2) sum /= count;
                    if (deep == 1) sum = most;
                    CHECK(found - sum < 1e-4f && sum - found < 1e-4f);
                    if (deep == 0) CHECK(byte == (whole + 2 < -128 ? -128 : whole + 2 > 127 ? 127 : whole + 2));
                    if (deep == 1) CHECK(byte == largest);
                    if (deep == 2) {
                        float mean = (float)whole / count + 2 - (float)byte;
                        CHECK(mean < 0.51f && mean > -0.51f);
                    }
                }
            }
        }
    }
}

int main(void) {
    tw_gemm gemm;
    tw_window window;
    tw_kernel *kernel = NULL;
    size_t one[4] = {1, 3, 2, 2}, huge[4] = {SIZE_MAX, 2, 2, 2};
    float small[16], back[12];
#ifndef KERNELS_ONLY
    tw_allocator allocator;
    memset(&allocator, 0, sizeof allocator);
    allocator.size = sizeof allocator;
    allocator.alloc = give;
    allocator.free = take;
    allocator.user = &pieces;
    CHECK(tw_set_allocator(&allocator) == TW_OK);
    GIVES(tw_set_allocator(NULL), TW_INVALID_ARGUMENT, "NULL");
    GIVES(tw_set_allocator(&allocator), TW_STATE, "before");
    allocator.alloc = NULL;
    GIVES(tw_set_allocator(&allocator), TW_INVALID_ARGUMENT, "NULL");
#endif
    CHECK(tw_abi_version() == TW_ABI_VERSION);
    fill();
    memset(&gemm, 0, sizeof gemm);
    memset(&window, 0, sizeof window);
    GIVES(tw_sgemm_new(NULL, NULL, 0, &kernel), TW_INVALID_ARGUMENT, "gemm is NULL");
    GIVES(tw_sgemm_new(&gemm, NULL, 0, &kernel), TW_INVALID_ARGUMENT, "0 bytes");
    gemm.size = sizeof gemm;
    GIVES(tw_sgemm_new(&gemm, NULL, 0, NULL), TW_INVALID_ARGUMENT, "out is NULL");
    GIVES(tw_sgemm_new(&gemm, NULL, 0, &kernel), TW_INVALID_ARGUMENT, "size must be at least 1");
    gemm.m = gemm.k = gemm.n = SIZE_MAX / 2;
    CHECK(tw_sgemm_new(&gemm, NULL, 0, &kernel) != TW_OK);
    gemm.m = gemm.k = gemm.n = 4;
    gemm.isa = "abacus";
    GIVES(tw_sgemm_new(&gemm, NULL, 0, &kernel), TW_INVALID_ARGUMENT, "isa");
#ifdef ISA
    gemm.isa = ISA;
    CHECK(tw_sgemm_new(&gemm, NULL, 0, &kernel) == TW_OK);
    tw_kernel_free(kernel);
    kernel = NULL;
#endif
    gemm.isa = "scalar";
    GIVES(tw_sgemm_new(&gemm, place.bytes + 1, 8000, &kernel), TW_INVALID_ARGUMENT, "aligned");
    GIVES(tw_sgemm_new(&gemm, place.bytes, 16, &kernel), TW_BUFFER_TOO_SMALL, "memory");
    gemm.activation = 77;
    GIVES(tw_sgemm_new(&gemm, NULL, 0, &kernel), TW_INVALID_ARGUMENT, "77");
    window.size = sizeof window;
    GIVES(tw_conv_new(&window, NULL, 0, &kernel), TW_INVALID_ARGUMENT, "size");
    GIVES(tw_pool_new(&window, 5, NULL, 0, &kernel), TW_INVALID_ARGUMENT, "5");
    CHECK(kernel == NULL);
    tw_kernel_free(NULL);
    CHECK(tw_blocked_count(one) == 64 && tw_blocked_count(huge) == 0 && tw_blocked_count(NULL) == 0);
    GIVES(tw_block(0, 4, one, fx, 12 * 4, small, sizeof small), TW_BUFFER_TOO_SMALL, "y has 64 bytes");
    DONE(tw_block(0, 4, one, fx, 12 * 4, fy, sizeof fy));
    CHECK(fy[16] == fx[3] && fy[3] == 0);
    DONE(tw_block(TW_UNBLOCK, 4, one, fy, sizeof fy, back, sizeof back));
    CHECK(memcmp(back, fx, sizeof back) == 0);
#ifndef KERNELS_ONLY
    CHECK(pieces > 0);
#endif
    products(1, 1, 1, 0);
    products(5, 33, 17, 0);
    products(13, 40, 64, 1);
    windows(3, 20, 9, 11, 3, 1);
    windows(32, 16, 8, 8, 1, 1);
    windows(17, 33, 7, 9, 3, 2);
    puts("kernels: ok");
    return 0;
}
