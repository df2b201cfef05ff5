/* A product of matrices with packed weights, planned once and run many times: matmul [ROUNDS].
 *
 * It needs kernels only: cc matmul.c $(pkg-config --cflags --libs --static tilewright-kernels) */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tilewright.h>

enum { M = 8, K = 256, N = 96 };

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tw_last_error());
    return 1;
}

int main(int argc, char **argv) {
    static float x[M * K], w[K * N], bias[N], y[M * N];
    int rounds = argc > 1 ? atoi(argv[1]) : 10, i;
    tw_gemm gemm;
    tw_weights weights;
    tw_operands run;
    tw_kernel_sizes sizes;
    tw_kernel *kernel = NULL;
    void *packed, *scratch;

    for (i = 0; i < M * K; i++) x[i] = (float)(i % 7) - 3.0f;
    for (i = 0; i < K * N; i++) w[i] = (float)(i % 5) - 2.0f;
    for (i = 0; i < N; i++) bias[i] = (float)i;

    /* What is to be computed: y = max(x * w + bias, 0). */
    memset(&gemm, 0, sizeof gemm);
    gemm.size = sizeof gemm;
    gemm.m = M;
    gemm.k = K;
    gemm.n = N;
    gemm.activation = TW_RELU;
    if (tw_sgemm_new(&gemm, NULL, 0, &kernel)) return failed("plan");
    if (tw_kernel_sizes_of(kernel, &sizes)) return failed("sizes");

    /* The weights in the order in which the kernel reads them; `w` is not needed any more. */
    packed = malloc(sizes.packed);
    scratch = malloc(sizes.scratch + 1);
    memset(&weights, 0, sizeof weights);
    weights.size = sizeof weights;
    weights.w = w;
    weights.count = K * N;
    weights.bias = bias;
    if (!packed || !scratch || tw_kernel_pack(kernel, &weights, packed, sizes.packed)) return failed("pack");

    memset(&run, 0, sizeof run);
    run.size = sizeof run;
    run.x = x;
    run.x_bytes = sizeof x;
    run.packed = packed;
    run.packed_bytes = sizes.packed;
    run.y = y;
    run.y_bytes = sizeof y;
    run.scratch = scratch;
    run.scratch_bytes = sizes.scratch;
    for (i = 0; i < rounds; i++) {
        x[0] = (float)i;
        if (tw_kernel_run(kernel, &run)) return failed("run");
    }
    printf("y[0][0..4]: %g %g %g %g\n", y[0], y[1], y[2], y[3]);
    tw_kernel_free(kernel);
    free(packed);
    free(scratch);
    return 0;
}
