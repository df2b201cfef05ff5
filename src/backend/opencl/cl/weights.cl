// Products with weights that hold a row per column of the result, in the formats of language models, and
// rows chosen by number. Definitions: FORMAT, the name of one below; W_OB rows of activations and C_OB
// rows of weights (of each of two matrices if GATED) make a tile; LANES, work-items that share it, each with
// its own chunks; ITEMS, tiles of a work-group at a time; TILES, how often; PREPARE, what happens to
// activations first; KIND, the function of the results; TILED, see below.
//
// A chunk is 32 elements of a row: LOAD(row, chunk) gives them as w0 and w1.

#define HALF(p, at) vload_half(0, (__global const half *)((p) + (at)))
// 16 bytes from `at` on, where blocks have even sizes, or sizes that 4 divides: GPUs read them so, not one by one.
#define BYTES_BY_2(p, at) as_uchar16(vload8(0, (__global const ushort *)((p) + (at))))
#define BYTES_BY_4(p, at) as_uchar16(vload4(0, (__global const uint *)((p) + (at))))
#define LOW(v) convert_float16((v) & (uchar16)(15))
#define HIGH(v) convert_float16((v) >> (uchar16)(4))

// Bits l and 16 + l of a word as 0 or 1.
int16 bits_of(uint word, uint first)
{
    const uint16 count = (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return convert_int16(((uint16)(word) >> (count + first)) & (uint16)(1));
}

#if FORMAT == 0 // f32
#define ELEMENT_BYTES 4
#define LOAD(row, c) \
    float16 w0 = vload16(0, (__global const float *)(row) + 32 * (c)); \
    float16 w1 = vload16(1, (__global const float *)(row) + 32 * (c))
#define ONE(row, i) ((__global const float *)(row))[i]
#elif FORMAT == 1 // f16
#define ELEMENT_BYTES 2
#define LOAD(row, c) \
    float16 w0 = vload_half16(0, (__global const half *)(row) + 32 * (c)); \
    float16 w1 = vload_half16(1, (__global const half *)(row) + 32 * (c))
#define ONE(row, i) vload_half(i, (__global const half *)(row))
#elif FORMAT == 2 // bf16
#define ELEMENT_BYTES 2
#define WIDE(v) as_float16(convert_uint16(v) << (uint16)(16))
#define LOAD(row, c) \
    float16 w0 = WIDE(vload16(0, (__global const ushort *)(row) + 32 * (c))); \
    float16 w1 = WIDE(vload16(1, (__global const ushort *)(row) + 32 * (c)))
#define ONE(row, i) as_float((uint)((__global const ushort *)(row))[i] << 16)
#elif FORMAT == 3 // q8_0
#define CHUNK_BYTES 34
#define LOAD(row, c) \
    __global const uchar *p = (row) + 34 * (c); \
    float d = HALF(p, 0); \
    float16 w0 = d * convert_float16(as_char16(BYTES_BY_2(p, 2))); \
    float16 w1 = d * convert_float16(as_char16(BYTES_BY_2(p, 18)))
#elif FORMAT == 4 // q4_0
#define CHUNK_BYTES 18
#define LOAD(row, c) \
    __global const uchar *p = (row) + 18 * (c); \
    float d = HALF(p, 0); \
    uchar16 q = BYTES_BY_2(p, 2); \
    float16 w0 = d * (LOW(q) - 8.0f), w1 = d * (HIGH(q) - 8.0f)
#elif FORMAT == 5 // q4_1
#define CHUNK_BYTES 20
#define LOAD(row, c) \
    __global const uchar *p = (row) + 20 * (c); \
    float d = HALF(p, 0), m = HALF(p, 2); \
    uchar16 q = BYTES_BY_4(p, 4); \
    float16 w0 = d * LOW(q) + m, w1 = d * HIGH(q) + m
#elif FORMAT == 6 // q5_0
#define CHUNK_BYTES 22
#define LOAD(row, c) \
    __global const uchar *p = (row) + 22 * (c); \
    float d = HALF(p, 0); \
    uint high = as_uint(vload2(0, (__global const ushort *)(p + 2))); \
    uchar16 q = BYTES_BY_2(p, 6); \
    float16 w0 = d * (LOW(q) + 16.0f * convert_float16(bits_of(high, 0)) - 16.0f); \
    float16 w1 = d * (HIGH(q) + 16.0f * convert_float16(bits_of(high, 16)) - 16.0f)
#elif FORMAT == 7 // q5_1
#define CHUNK_BYTES 24
#define LOAD(row, c) \
    __global const uchar *p = (row) + 24 * (c); \
    float d = HALF(p, 0), m = HALF(p, 2); \
    uint high = *(__global const uint *)(p + 4); \
    uchar16 q = BYTES_BY_4(p, 8); \
    float16 w0 = d * (LOW(q) + 16.0f * convert_float16(bits_of(high, 0))) + m; \
    float16 w1 = d * (HIGH(q) + 16.0f * convert_float16(bits_of(high, 16))) + m
#elif FORMAT == 8 || FORMAT == 9 // q4_k, q5_k
#if FORMAT == 8
#define SUPER_BYTES 144
#define FIFTH0 (float16)(0.0f)
#define FIFTH1 (float16)(0.0f)
#define NIBBLES 16
#else
#define SUPER_BYTES 176
#define FIFTH(at) (16.0f * convert_float16((BYTES_BY_4(p, 16 + (at)) >> (uchar16)(g)) & (uchar16)(1)))
#define FIFTH0 FIFTH(0)
#define FIFTH1 FIFTH(16)
#define NIBBLES 48
#endif
#define LOAD(row, c) \
    __global const uchar *p = (row) + SUPER_BYTES * ((c) / 8); \
    int g = (c) % 8; \
    uchar scale, least; \
    if (g < 4) { \
        scale = p[4 + g] & 63; \
        least = p[8 + g] & 63; \
    } else { \
        scale = (p[8 + g] & 15) | ((p[g] >> 6) << 4); \
        least = (p[8 + g] >> 4) | ((p[4 + g] >> 6) << 4); \
    } \
    float d = HALF(p, 0) * scale, m = HALF(p, 2) * least; \
    uchar16 q0 = BYTES_BY_4(p, NIBBLES + 32 * (g / 2)), q1 = BYTES_BY_4(p, NIBBLES + 16 + 32 * (g / 2)); \
    uchar16 down = (uchar16)(4 * (g & 1)); \
    float16 w0 = d * (LOW(q0 >> down) + FIFTH0) - m; \
    float16 w1 = d * (LOW(q1 >> down) + FIFTH1) - m
#elif FORMAT == 10 // q6_k
#define SUPER_BYTES 210
#define LOAD(row, c) \
    __global const uchar *p = (row) + 210 * ((c) / 8); \
    int g = (c) % 8, part = g / 4, quarter = g % 4; \
    float d = HALF(p, 208); \
    float d0 = d * (float)((__global const char *)p)[192 + 2 * g]; \
    float d1 = d * (float)((__global const char *)p)[193 + 2 * g]; \
    __global const uchar *low = p + 64 * part + 32 * (quarter & 1), *high = p + 128 + 32 * part; \
    uchar16 down = (uchar16)(4 * (quarter / 2)), at = (uchar16)(2 * quarter); \
    uchar16 h0 = ((BYTES_BY_2(high, 0) >> at) & (uchar16)(3)) << (uchar16)(4); \
    uchar16 h1 = ((BYTES_BY_2(high, 16) >> at) & (uchar16)(3)) << (uchar16)(4); \
    float16 w0 = d0 * (convert_float16(((BYTES_BY_2(low, 0) >> down) & (uchar16)(15)) | h0) - 32.0f); \
    float16 w1 = d1 * (convert_float16(((BYTES_BY_2(low, 16) >> down) & (uchar16)(15)) | h1) - 32.0f)
#endif

#if defined(ELEMENT_BYTES)
#define ROW_BYTES(k) ((long)(k) * ELEMENT_BYTES)
#elif defined(CHUNK_BYTES)
#define ROW_BYTES(k) ((long)((k) / 32) * CHUNK_BYTES)
#else
#define ROW_BYTES(k) ((long)((k) / 256) * SUPER_BYTES)
#endif

#define COLUMNS (C_OB * (1 + GATED))
#define ITEMS_OF_GROUP (LANES * ITEMS)
#define EACH_ROW _Pragma("unroll") for (int i = 0; i < W_OB; i++)
#define EACH_COLUMN _Pragma("unroll") for (int j = 0; j < COLUMNS; j++)
#define DEF float16 t[W_OB][COLUMNS]
#define ZERO EACH_ROW EACH_COLUMN t[i][j] = (float16)(0.0f)
#if PREPARE
#define ACTIVATIONS(i) (kept + (i) * k)
#else
#define ACTIVATIONS(i) (x + (long)xr[i] * k)
#endif
// Half h of chunk c. What a group has prepared lies with the first elements of all chunks first, then the second
// ones: lanes read what is beside each other, each from a bank of its own.
#if PREPARE && LANES > 1
#define PLACE(c, e) ((e) * chunks + (c))
#define OF_CHUNK(i, c, e) ACTIVATIONS(i)[PLACE(c, e)]
#define FOUR(i, c, e) OF_CHUNK(i, c, e), OF_CHUNK(i, c, e + 1), OF_CHUNK(i, c, e + 2), OF_CHUNK(i, c, e + 3)
#define SIXTEEN(i, c, h) \
    (float16)(FOUR(i, c, 16 * h), FOUR(i, c, 16 * h + 4), FOUR(i, c, 16 * h + 8), FOUR(i, c, 16 * h + 12))
#define KEEP_CHUNK(a, b, to, c) \
    { \
        float s[32]; \
        vstore16(a, 0, s); \
        vstore16(b, 1, s); \
        _Pragma("unroll") for (int e = 0; e < 32; e++) \
            (to)[PLACE(c, e)] = s[e]; \
    }
#else
#define SIXTEEN(i, c, h) vload16(h, ACTIVATIONS(i) + 32 * (c))
#define KEEP_CHUNK(a, b, to, c) \
    { \
        vstore16(a, 0, (to) + 32 * (c)); \
        vstore16(b, 1, (to) + 32 * (c)); \
    }
#endif
#define COMPUTE(c) \
    EACH_COLUMN { \
        LOAD(row[j], c); \
        EACH_ROW { \
            t[i][j] = fma(SIXTEEN(i, c, 0), w0, t[i][j]); \
            t[i][j] = fma(SIXTEEN(i, c, 1), w1, t[i][j]); \
        } \
    }

float sum16(float16 v)
{
    float8 a = v.lo + v.hi;
    float4 b = a.lo + a.hi;
    float2 c = b.lo + b.hi;
    return c.x + c.y;
}

#if PREPARE
// Row `from` as the products take it, in memory of the work-group: normalised (PREPARE & 1), rounded to 8
// bits (PREPARE & 2). All work-items of the group take part.
void prepare(__global const float *from, __global const float *scale, __local float *to,
    __local float *shared, int k, float epsilon)
{
    int item = get_local_id(0), chunks = k / 32;
    float inverse = 1.0f;
#if PREPARE & 1
    float16 squares = (float16)(0.0f);
    float more = 0.0f;
    for (int c = item; c < chunks; c += ITEMS_OF_GROUP) {
        float16 a = vload16(0, from + 32 * c), b = vload16(1, from + 32 * c);
        squares += a * a + b * b;
    }
    for (int e = chunks * 32 + item; e < k; e += ITEMS_OF_GROUP)
        more += from[e] * from[e];
    shared[item] = sum16(squares) + more;
    barrier(CLK_LOCAL_MEM_FENCE);
    float all = 0.0f;
#if ITEMS_OF_GROUP % 16 == 0
    float16 sixteen = (float16)(0.0f);
    for (int l = 0; l < ITEMS_OF_GROUP / 16; l++)
        sixteen += vload16(l, shared);
    all = sum16(sixteen);
#else
    for (int l = 0; l < ITEMS_OF_GROUP; l++)
        all += shared[l];
#endif
    inverse = 1.0f / sqrt(all / k + epsilon);
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    for (int c = item; c < chunks; c += ITEMS_OF_GROUP) {
        float16 a = vload16(0, from + 32 * c), b = vload16(1, from + 32 * c);
#if PREPARE & 1
        a = a * inverse * vload16(0, scale + 32 * c);
        b = b * inverse * vload16(1, scale + 32 * c);
#endif
#if PREPARE & 2
        ROUND(a, b);
#endif
        KEEP_CHUNK(a, b, to, c);
    }
    for (int e = chunks * 32 + item; e < k; e += ITEMS_OF_GROUP) {
#if PREPARE & 1
        to[e] = from[e] * inverse * scale[e];
#else
        to[e] = from[e];
#endif
    }
}
#endif

// y[z][m][n] = function(sum_k x[z][m][k] w[z][n][k] + bias[n] + added). Batches as in gemm.cl, strides of w
// in bytes. Up to three matrices have their products with the same x in one call, each with a result of its
// own; n1 and n2 are 0 where there are fewer. GATED: there are two, and y = function(of the first) * second.
typedef struct {
    ulong x, w, w_1, w_2, bias, bias_1, bias_2, scale, added, y, y_1, y_2;
    int m, n, n1, n2, k, inner, x_outer, x_inner, w_outer, w_inner, has_bias, has_added;
    float fa, fb, epsilon;
} rows_numbers;

// The matrix of a tile of `width` columns, and what belongs to it.
#if GATED
#define CHOOSE(tile, width)
#else
#define TAKE(i) \
    first = w_##i; \
    more = bias_##i; \
    to = y_##i; \
    columns = n##i
#define CHOOSE(tile, width) \
    { \
        int tiles = (n + width - 1) / width, tiles_1 = (n1 + width - 1) / width; \
        if (n1 > 0 && tile >= tiles) { \
            tile -= tiles; \
            TAKE(1); \
            if (n2 > 0 && tile >= tiles_1) { \
                tile -= tiles_1; \
                TAKE(2); \
            } \
        } \
    }
#endif
#define TILE(width) \
    __global const uchar *first = w, *second = w_1; \
    __global const float *more = bias; \
    __global float *to = y; \
    int columns = n; \
    CHOOSE(tile, width); \
    int n0 = tile * width; \
    long shift = (long)(z / inner) * of.w_outer + (long)(z % inner) * of.w_inner

// The sum of row `row` and column `column`, and that of the second matrix.
#if GATED
#define GATE(sum, column) v *= has_bias ? sum + bias_1[column] : sum
#else
#define GATE(sum, column)
#endif
#define FINISH(sum, other, row, column) \
    if ((row) < m && (column) < columns) { \
        long at = ((long)z * m + (row)) * columns + (column); \
        float v = sum; \
        if (has_bias) \
            v += more[column]; \
        if (has_added) \
            v += added[at]; \
        v = function1(v, KIND, fa, fb); \
        GATE(other, column); \
        to[at] = v; \
    }

// TILED: work-items of a group that lie across its tile, and down.
#define ACROSS 16
#define DOWN (ITEMS_OF_GROUP / ACROSS)
#define ROWS_OF_GROUP (DOWN * W_OB)
#define COLUMNS_OF_GROUP (ACROSS * C_OB)

__kernel void rows(OF(const float, x), OF(const uchar, w), OF(const uchar, w_1), OF(const uchar, w_2),
    OF(const float, bias), OF(const float, bias_1), OF(const float, bias_2), OF(const float, scale),
    OF(const float, added), OF(float, y), OF(float, y_1), OF(float, y_2), __local float *shared,
    rows_numbers of)
{
    OPEN_OF(const float, x);
    OPEN_OF(const uchar, w);
    OPEN_OF(const uchar, w_1);
    OPEN_OF(const uchar, w_2);
    OPEN_OF(const float, bias);
    OPEN_OF(const float, bias_1);
    OPEN_OF(const float, bias_2);
    OPEN_OF(const float, scale);
    OPEN_OF(const float, added);
    OPEN_OF(float, y);
    OPEN_OF(float, y_1);
    OPEN_OF(float, y_2);
    const int m = of.m, n = of.n, n1 = of.n1, n2 = of.n2, k = of.k, inner = of.inner;
    const int has_bias = of.has_bias, has_added = of.has_added;
    const float fa = of.fa, fb = of.fb;
#ifdef TILED
    // On GPUs, many rows: a group computes a tile of ROWS_OF_GROUP rows and COLUMNS_OF_GROUP columns, for which it
    // brings a chunk of each to its memory at a time. A work-item has W_OB rows and C_OB columns of it.
    __local float of_x[32][ROWS_OF_GROUP + 1], of_w[1 + GATED][32][COLUMNS_OF_GROUP + 1];
    int item = get_local_id(0), tile = get_group_id(0), m0 = get_group_id(1) * ROWS_OF_GROUP, z = get_global_id(2);
    x += (long)(z / inner) * of.x_outer + (long)(z % inner) * of.x_inner;
    TILE(COLUMNS_OF_GROUP);
    // The column that the work-item brings, and its place among those that it computes.
    int brought = item % COLUMNS_OF_GROUP, matrix = item / COLUMNS_OF_GROUP;
    __global const uchar *row = (matrix ? second : first) + shift
        + (long)min(n0 + brought, columns - 1) * ROW_BYTES(k);
    int down = item / ACROSS, across = item % ACROSS;
    float s[W_OB][COLUMNS];
    EACH_ROW EACH_COLUMN s[i][j] = 0.0f;
    for (int c = 0; c < k / 32; c++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = item; i < 32 * ROWS_OF_GROUP; i += ITEMS_OF_GROUP)
            of_x[i % 32][i / 32] = x[(long)min(m0 + i / 32, m - 1) * k + 32 * c + i % 32];
        if (matrix <= GATED) {
            LOAD(row, c);
            float own[32];
            vstore16(w0, 0, own);
            vstore16(w1, 1, own);
            _Pragma("unroll") for (int e = 0; e < 32; e++)
                of_w[matrix][e][brought] = own[e];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        _Pragma("unroll 8") for (int e = 0; e < 32; e++) {
            float a[W_OB];
            EACH_ROW a[i] = of_x[e][down + i * DOWN];
            EACH_COLUMN {
                float b = of_w[j / C_OB][e][across + j % C_OB * ACROSS];
                EACH_ROW s[i][j] = fma(a[i], b, s[i][j]);
            }
        }
    }
    EACH_ROW _Pragma("unroll") for (int j = 0; j < C_OB; j++) {
        int at_row = m0 + down + i * DOWN, at_column = n0 + across + j * ACROSS;
        FINISH(s[i][j], s[i][COLUMNS - C_OB + j], at_row, at_column);
    }
}
#else
    int m0 = get_global_id(1) * W_OB, z = get_global_id(2);
    x += (long)(z / inner) * of.x_outer + (long)(z % inner) * of.x_inner;
#if PREPARE
    __local float *kept = shared + ITEMS_OF_GROUP;
    for (int i = 0; i < W_OB; i++)
        prepare(x + (long)min(m0 + i, m - 1) * k, scale, kept + i * k, shared, k, of.epsilon);
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    int xr[W_OB];
    EACH_ROW xr[i] = min(m0 + i, m - 1);
#endif
    int item = get_local_id(0), lane = item % LANES;
    for (int q = 0; q < TILES; q++) {
        int tile = get_global_id(0) / LANES * TILES + q;
        TILE(C_OB);
        // Rows behind the last one are taken for it, and not stored.
        __global const uchar *row[COLUMNS];
        EACH_COLUMN row[j] = (j < C_OB ? first : second) + shift
            + (long)min(n0 + j % C_OB, columns - 1) * ROW_BYTES(k);
        DEF;
        ZERO;
        int chunks = k / 32;
        for (int c = lane; c < chunks; c += LANES)
            COMPUTE(c)
        float s[W_OB][COLUMNS];
        EACH_ROW EACH_COLUMN s[i][j] = sum16(t[i][j]);
#ifdef ONE
        for (int e = chunks * 32 + lane; e < k; e += LANES) {
            EACH_COLUMN {
                float v = ONE(row[j], e);
                EACH_ROW s[i][j] += v * ACTIVATIONS(i)[e];
            }
        }
#endif
#if LANES > 1
        EACH_ROW EACH_COLUMN {
            barrier(CLK_LOCAL_MEM_FENCE);
            shared[item] = s[i][j];
            for (int half_ = LANES / 2; half_ > 0; half_ /= 2) {
                barrier(CLK_LOCAL_MEM_FENCE);
                if (lane < half_)
                    shared[item] += shared[item + half_];
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            s[i][j] = shared[item - lane];
        }
#endif
        EACH_ROW _Pragma("unroll") for (int j = 0; j < C_OB; j++) {
            if (lane == 0)
                FINISH(s[i][j], s[i][COLUMNS - C_OB + j], m0 + i, n0 + j);
        }
    }
}
#endif

// y[i] = row ids[i] of w. Numbers outside are an error that the host has found; here they only must not
// reach beyond the memory.
__kernel void embedding(IN(uchar, w), IN(int, ids), OUT(float, y), int n, int k)
{
    OPEN_IN(uchar, w);
    OPEN_IN(int, ids);
    OPEN_OUT(float, y);
    int c = get_global_id(0), i = get_global_id(1), chunks = k / 32;
    __global const uchar *row = w + (long)clamp(ids[i], 0, n - 1) * ROW_BYTES(k);
    y += (long)i * k;
    if (c < chunks) {
        LOAD(row, c);
        vstore16(w0, 0, y + 32 * c);
        vstore16(w1, 1, y + 32 * c);
    }
#ifdef ONE
    else
        for (int e = chunks * 32; e < k; e++)
            y[e] = ONE(row, e);
#endif
}
