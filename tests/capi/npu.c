/* Rockchip's NPU by its name: npu. Two products of a network, by the backend "rknn" and by the CPU. Each result
 * of the NPU must be as near to that of the CPU as rounding operands to halves allows. `cargo xtask capi` runs
 * it with the emulated library. */

#include <math.h>
#include <stdint.h>

#include "check.h"

enum { ROWS = 48, K = 96, MIDDLE = 128, N = 64, ROOM = 1 << 17 };

static int warnings;

static void heard(void *user, int32_t level, const char *line) {
    (void)user;
    if (level == TW_LOG_WARNING) warnings++;
    if (level != TW_LOG_INFO) printf("npu: the library says: %s\n", line);
}

/* An ONNX file in the making: messages of protobuf, written from their lengths. */
typedef struct {
    unsigned char bytes[ROOM];
    size_t length;
} message;

static message model, graph, part, nested;

static void put(message *to, const void *data, size_t length) {
    CHECK(length <= ROOM - to->length);
    memcpy(to->bytes + to->length, data, length);
    to->length += length;
}

static void varint(message *to, uint64_t value) {
    do {
        unsigned char byte = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
        put(to, &byte, 1);
        value >>= 7;
    } while (value != 0);
}

static void number(message *to, unsigned field, uint64_t value) {
    varint(to, (uint64_t)field << 3);
    varint(to, value);
}

static void bytes(message *to, unsigned field, const void *data, size_t length) {
    varint(to, (uint64_t)field << 3 | 2);
    varint(to, length);
    put(to, data, length);
}

static void text(message *to, unsigned field, const char *value) { bytes(to, field, value, strlen(value)); }

/* GraphProto.node */
static void node(const char *op, const char *a, const char *b, const char *y) {
    part.length = 0;
    text(&part, 1, a);
    if (b != NULL) text(&part, 1, b);
    text(&part, 2, y);
    text(&part, 4, op);
    bytes(&graph, 1, part.bytes, part.length);
}

/* GraphProto.initializer */
static void constant(const char *name, const float *values, int64_t rows, int64_t columns) {
    part.length = 0;
    number(&part, 1, (uint64_t)rows);
    number(&part, 1, (uint64_t)columns);
    number(&part, 2, 1);
    text(&part, 8, name);
    bytes(&part, 9, values, (size_t)(rows * columns) * sizeof *values);
    bytes(&graph, 5, part.bytes, part.length);
}

/* GraphProto.input or output: a matrix of floats. */
static void value(unsigned field, const char *name, int64_t rows, int64_t columns) {
    static message inner;
    size_t i;
    const int64_t dims[2] = {rows, columns};
    inner.length = 0;
    for (i = 0; i < 2; i++) { /* TensorShapeProto.dim */
        part.length = 0;
        number(&part, 1, (uint64_t)dims[i]);
        bytes(&inner, 1, part.bytes, part.length);
    }
    nested.length = 0;
    number(&nested, 1, 1);
    bytes(&nested, 2, inner.bytes, inner.length);
    part.length = 0;
    bytes(&part, 1, nested.bytes, nested.length); /* TypeProto.tensor_type */
    nested.length = 0;
    text(&nested, 1, name);
    bytes(&nested, 2, part.bytes, part.length);
    bytes(&graph, field, nested.bytes, nested.length);
}

static float x[ROWS * K], first[K * MIDDLE], second[MIDDLE * N];
static float middle[2][ROWS * MIDDLE], last[2][ROWS * N];

static void fill(float *values, size_t count, uint32_t seed) {
    size_t i;
    for (i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
}

static void file(void) {
    node("MatMul", "x", "w", "middle");
    node("Relu", "middle", NULL, "positive");
    node("MatMul", "positive", "v", "last");
    constant("w", first, K, MIDDLE);
    constant("v", second, MIDDLE, N);
    value(11, "x", ROWS, K);
    value(12, "middle", ROWS, MIDDLE);
    value(12, "last", ROWS, N);
    number(&model, 1, 8);
    bytes(&model, 7, graph.bytes, graph.length);
    part.length = 0;
    number(&part, 2, 17);
    bytes(&model, 8, part.bytes, part.length);
}

static void run(int npu) {
    static const int64_t dims[2] = {ROWS, K};
    tw_options options;
    tw_model *loaded = NULL;
    tw_session *session = NULL;
    tw_tensor result;
    tw_profile_row rows[16];
    size_t count = 0, on_npu = 0, i;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 1;
    options.profile = 1;
    options.backend = npu ? "rknn" : "cpu";
    DONE(tw_model_from_memory(model.bytes, model.length, 0, &options, &loaded));
    DONE(tw_session_new(loaded, &session));
    DONE(tw_session_set_input(session, 0, TW_F32, 2, dims, x, sizeof x));
    DONE(tw_session_run(session));
    DONE(tw_session_run(session));
    DONE(tw_session_output(session, 0, &result));
    CHECK(result.dtype == TW_F32 && result.bytes == sizeof middle[0]);
    memcpy(middle[npu], result.data, result.bytes);
    DONE(tw_session_output(session, 1, &result));
    CHECK(result.dtype == TW_F32 && result.bytes == sizeof last[0]);
    memcpy(last[npu], result.data, result.bytes);
    DONE(tw_session_profile(session, NULL, 0, &count));
    CHECK(count <= 16);
    DONE(tw_session_profile(session, rows, count, &count));
    for (i = 0; i < count; i++) on_npu += strncmp(rows[i].kernel, "rknn", 4) == 0;
    printf("npu: %s: %lu of %lu operations by the NPU\n", options.backend, (unsigned long)on_npu,
           (unsigned long)count);
    /* A product there is several steps: it is begun, and later waited for. */
    CHECK(npu ? on_npu >= 2 : on_npu == 0);
    tw_session_free(session);
    tw_model_free(loaded);
}

/* A product of halves differs from the exact one by at most this part of the sum of its terms' sizes: both
 * operands are rounded to 11 bits, sums to 24. */
static double part_of(int k) { return 1.0 / 1024.0 + (k + 4.0) / (double)(1 << 24); }

static void compare(double found, double expected, double bound, const char *what) {
    if (!(fabs(found - expected) <= bound)) {
        fprintf(stderr, "%s: %g, by the CPU %g; they may differ by %g\n", what, found, expected, bound);
        exit(1);
    }
}

int main(void) {
    static double off[MIDDLE];
    int r, i, j, differ = 0;
    fill(x, ROWS * K, 1);
    fill(first, K * MIDDLE, 2);
    fill(second, MIDDLE * N, 3);
    file();
    tw_set_log(heard, NULL);
    run(0);
    run(1);
    for (r = 0; r < ROWS; r++) {
        const float *by_cpu = &middle[0][r * MIDDLE], *by_npu = &middle[1][r * MIDDLE];
        for (i = 0; i < MIDDLE; i++) {
            double size = 0;
            for (j = 0; j < K; j++) size += fabs((double)x[r * K + j] * (double)first[j * MIDDLE + i]);
            off[i] = part_of(K) * size;
            compare((double)by_npu[i], (double)by_cpu[i], off[i], "the first product");
            differ += by_npu[i] != by_cpu[i];
        }
        for (j = 0; j < N; j++) {
            double bound = 0;
            for (i = 0; i < MIDDLE; i++) {
                double in = by_cpu[i] > 0 ? (double)by_cpu[i] : 0, w = fabs((double)second[i * N + j]);
                bound += off[i] * w + part_of(MIDDLE) * (in + off[i]) * w;
            }
            compare((double)last[1][r * N + j], (double)last[0][r * N + j], bound, "the second product");
        }
    }
    /* Halves have been used: else nothing was compared. */
    CHECK(differ > 0);
    CHECK(warnings == 0);
    puts("npu: ok");
    return 0;
}
